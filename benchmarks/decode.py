"""Decode of a random Llama of about 100 M parameters on the CPU: PersistentKernel's openmp against Hugging Face in eager mode
in the same dtype, and against the time that its threads need to read the weights once. Needs `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measure import Result, rates, took

STEPS, ROUNDS = 16, 6
SIZES = dict(
    vocab_size=32000,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    eos_token_id=None,
    bos_token_id=None,
)


def hugging_face(model: Any, prompt: list[int]) -> float:
    """Seconds for STEPS greedy tokens after the prompt."""
    import torch

    with torch.inference_mode():
        out = model(torch.tensor([prompt]), use_cache=True)

        def steps() -> None:
            nonlocal out
            for _ in range(STEPS):
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)

        return took(steps)


def kernel_time(kernel: Any, prompt: list[int]) -> float:
    kernel.reset()
    kernel.add_request(prompt)
    kernel()
    return took(lambda: kernel(steps=STEPS))


def decode() -> Iterator[Result]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import gt

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    prompt = list(range(1, 17))
    for dtype in ("float32", "bfloat16"):
        model.to(getattr(torch, dtype))
        kernel = gt.PersistentKernel(backend="openmp", dtype=dtype, max_seq_length=256, max_num_batched_requests=1)
        kernel.load_model(model.config, state).compile()
        executor: Any = kernel._executor
        mine, theirs, reading = [], [], []
        for _ in range(ROUNDS):  # in turns, so that a busy machine is busy for all
            mine.append(kernel_time(kernel, prompt) / STEPS)
            reading.append(min(took(executor.read_weights) for _ in range(4)))
            theirs.append(hugging_face(model, prompt) / STEPS)
        yield rates(f"decode {dtype}", 1 / min(mine), 1 / min(theirs), "tokens/s (HF eager)")
        size = executor.read_weights() / 1e9
        yield rates(f"decode {dtype} reading", size / min(mine), size / min(reading), "GB/s (reading alone)")
        kernel.finalize()


CASES = {"decode": decode}
