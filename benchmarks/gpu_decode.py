"""Decode of random Qwen3 shapes on one GPU: `python benchmarks/gpu_decode.py [--out FILE] [--batches 1,8,32]`.

bfloat16, a context of 1024 tokens, 256 greedy steps. Each row has PersistentKernel's backends, Hugging Face in eager mode and
with a static cache under torch.compile, all with the same weights and measured in turns, and the step that the memory's
measured bandwidth allows. Hugging Face runs fewer steps (`--rival-steps`), of which each takes the same time. Once `--seconds`
are over, rivals that are left are not measured, and the table has a note. Compiling comes first; `--hold` waits after it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gt

CONTEXT, STEPS = 1024, 256
COMMON = dict(num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=4096, rope_theta=1e6)
SHAPES = {
    "0.6B": dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, tie_word_embeddings=True
    ),
    "8B": dict(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, tie_word_embeddings=False
    ),
}


def bandwidth() -> dict[str, float]:
    """Bytes a second: of a read of 8 GiB, and of a copy, both ways counted."""
    x = torch.empty(1 << 31, dtype=torch.float32, device="cuda").normal_()
    half = x[: 1 << 30]
    other = torch.empty_like(half)
    works: dict[str, tuple[Callable[[], Any], int]] = {
        "read": (lambda: x.sum(), x.nbytes),
        "copy": (lambda: other.copy_(half), 2 * half.nbytes),
    }
    return {name: bytes / min(seconds(work) for _ in range(8)) for name, (work, bytes) in works.items()}


def seconds(work: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def hugging_face(shape: str) -> Any:
    """A model with random weights, made on the GPU."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    config = Qwen3Config(**COMMON, **SHAPES[shape], eos_token_id=None, bos_token_id=None)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    generator, state = torch.Generator("cuda").manual_seed(0), {}
    for name, parameter in model.named_parameters():
        drawn = torch.empty(parameter.shape, dtype=torch.bfloat16, device="cuda")
        if len(parameter.shape) == 2:
            state[name] = drawn.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
        else:
            state[name] = drawn.uniform_(0.5, 1.5, generator=generator)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = Qwen3RotaryEmbedding(config).cuda()
    return model.eval()


def eager_rate(model: Any, prompts: torch.Tensor, steps: int) -> float:
    with torch.inference_mode():
        out = model(prompts, use_cache=True, logits_to_keep=1)
        held = [out.logits[:, -1:].argmax(-1), out.past_key_values]

        def run(count: int) -> None:
            for _ in range(count):
                made = model(held[0], past_key_values=held[1], use_cache=True)
                held[:] = [made.logits[:, -1:].argmax(-1), made.past_key_values]

        run(3)
        return steps * len(prompts) / seconds(lambda: run(steps))


def compiled_rate(model: Any, prompts: torch.Tensor, steps: int) -> Callable[[], float]:
    """Compiles; returns the function that measures."""
    from transformers import StaticCache

    forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=CONTEXT + STEPS)
    token = torch.zeros((len(prompts), 1), dtype=torch.long, device="cuda")
    position = torch.zeros((1, 1), dtype=torch.long, device="cuda")
    with torch.inference_mode():
        token.copy_(model(prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1))

    def run(count: int) -> None:
        with torch.inference_mode():
            for _ in range(count):
                position.fill_(CONTEXT)
                out = forward(token, past_key_values=cache, position_ids=position)
                token.copy_(out.logits[:, -1:].argmax(-1))

    run(3)
    return lambda: steps * len(prompts) / seconds(lambda: run(steps))


def kernel_of(backend: str, model: Any, batch: int) -> Any:
    kernel = gt.PersistentKernel(
        backend=backend, dtype="bfloat16", page_size=16, max_num_batched_requests=batch, max_num_batched_tokens=CONTEXT,
        max_seq_length=CONTEXT + STEPS + 16, eos_token_id=(),
    )  # fmt: skip
    state = {n: p.detach() for n, p in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return kernel.load_model(model.config, state).compile()


def kernel_rate(kernel: Any, prompts: list[list[int]]) -> float:
    kernel.reset()
    for prompt in prompts:
        kernel.add_request(prompt)
    kernel(steps=3)
    return STEPS * len(prompts) / seconds(lambda: kernel(steps=STEPS))


def floor_of(config: Any, batch: int, bytes_a_second: float) -> float:
    """Tokens a second, if a step took as long as the reading of all weights and of the keys and values so far."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    layer = (heads + config.num_attention_heads) * config.head_dim * config.hidden_size
    layer += 3 * config.hidden_size * config.intermediate_size
    weights = config.num_hidden_layers * layer + config.vocab_size * config.hidden_size
    tokens = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * (CONTEXT + STEPS // 2)
    return batch * bytes_a_second / (2 * (weights + batch * tokens))


def hold(path: str) -> None:
    """Say that the rival is compiled, and wait until it may be measured: others compile at the same time."""
    if path:
        Path(f"{path}.compiled").touch()
        while not Path(path).exists():
            time.sleep(0.1)


def measure(shape: str, batch: int, model: Any, fastest: float, args: Any, began: float) -> dict[str, Any]:
    ids = torch.randint(0, 151936, (batch, CONTEXT), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    prompts = ids.tolist()
    rows: dict[str, float | None] = {"HF eager": None, "HF static compiled": None}
    rivals: dict[str, Callable[[], float]] = {}
    if args.rivals and time.perf_counter() - began < args.seconds:
        if args.eager:
            rivals["HF eager"] = lambda: eager_rate(model, ids, args.rival_steps)
        if {shape, f"{shape}:{batch}"} & set(args.compiled.split(",")):
            torch._dynamo.reset()
            rivals["HF static compiled"] = compiled_rate(model, ids, args.rival_steps)
    kernel = kernel_of("cuda", model, batch) if rivals else None
    hold(args.hold)
    for backend in filter(None, args.backends.split(",")):
        other = kernel_of(backend, model, batch)
        rows[backend] = max(kernel_rate(other, prompts) for _ in range(args.rounds))
        other.finalize()
        del other
        gc.collect()
        torch.cuda.empty_cache()
    if kernel is not None:
        works = {"cuda": lambda: kernel_rate(kernel, prompts), **rivals}
        for _ in range(args.rounds):  # in turns
            for name, work in works.items():
                rows[name] = max(rows.get(name) or 0, work())
        kernel.finalize()
    return {"shape": shape, "batch": batch, "unit": "tokens/s", **rows, "floor": floor_of(model.config, batch, fastest)}


def show(result: dict[str, Any]) -> None:
    rates = {key: value for key, value in result.items() if key not in ("shape", "batch", "unit")}
    text = "  ".join(f"{key} {'not measured' if rate is None else f'{rate:.0f}'}" for key, rate in rates.items())
    mine = result.get("cuda") or 0
    against = result["HF static compiled"]
    print(f"Qwen3-{result['shape']} batch {result['batch']}: {text}  tokens/s; cuda {mine / result['floor']:.2f} of the floor"
          + (f", {mine / against:.2f} of HF compiled" if against else ""), flush=True)  # fmt: skip


def write(path: str | None, speeds: dict[str, float], results: list[dict[str, Any]]) -> None:
    """After each row, so that a run that is cut short leaves the rows it has."""
    if path:
        facts = {"command": " ".join(["python", *sys.argv]), "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        with open(path, "w") as file:
            json.dump({**facts, "bandwidth": speeds, "results": results}, file, indent=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--shapes", default="0.6B,8B")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--backends", default="cuda,triton", help='none is ""')
    parser.add_argument("--no-rivals", dest="rivals", action="store_false")
    parser.add_argument("--no-eager", dest="eager", action="store_false", help="of the rivals, only the compiled one")
    parser.add_argument("--compiled", default="0.6B,8B", help="for which shapes, or shape:batch, the compiled rival is")
    parser.add_argument("--hold", default="", help="a file: write FILE.compiled after compiling, and measure once FILE exists")
    parser.add_argument("--rival-steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600)
    args = parser.parse_args()
    began, speeds = time.perf_counter(), bandwidth()
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}: " + ", ".join(f"{name} {rate / 1e12:.2f} TB/s" for name, rate in speeds.items()))
    results = []
    for shape in args.shapes.split(","):
        model = hugging_face(shape)
        for batch in map(int, args.batches.split(",")):
            results.append(measure(shape, batch, model, max(speeds.values()), args, began))
            show(results[-1])
            write(args.out, speeds, results)
            torch.cuda.empty_cache()
        del model
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
