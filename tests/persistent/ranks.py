"""One rank of a model that is split over processes; run by test_ranks.py. Prints tokens as JSON."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist

import gt
from tests.persistent.tiny import config, prompts, weights


def main(backend: str, family: str, store: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    c = config(family, attention_bias=family == "llama", mlp_bias=family == "llama")
    kernel = gt.PersistentKernel(
        backend=backend, world_size=size, mpi_rank=rank, page_size=4, max_seq_length=200, model=(c, weights(c))
    )
    ids = [kernel.add_request(prompt, temperature=t) for prompt, t in zip(prompts(5, 9, 2), (0.0, 0.0, 0.8))]
    kernel(steps=100)
    shapes = kernel._executor.cache_shape
    json.dump([[kernel.tokens(id) for id in ids], shapes], sys.stdout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
