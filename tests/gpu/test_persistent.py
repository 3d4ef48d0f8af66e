"""PersistentKernel on the GPU, by the CUDA C++ and the Triton kernels, against Hugging Face and the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.persistent import choice
from tests.persistent import test_huggingface as cpu
from tests.persistent.test_huggingface import CASES, generate, make
from tests.persistent.tiny import config, prompts, weights

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
reference = pytest.fixture(scope="module", name="reference")(cpu.hugging_face_logits)
BACKENDS = ["cuda", "triton"]
BOTH = pytest.mark.parametrize("backend", BACKENDS)


@BOTH
def test_the_backend_is_available(backend: str) -> None:
    assert choice.reason_unavailable(backend) is None


@pytest.mark.parametrize("case", CASES)
@BOTH
def test_a_hundred_greedy_tokens_equal_hugging_face(backend: str, case: str, reference: Callable[..., Any]) -> None:
    generate(backend, case, reference)


@pytest.mark.parametrize("case", CASES)
@BOTH
def test_logits_equal_hugging_face(backend: str, case: str, reference: Callable[..., Any]) -> None:
    cpu.test_logits_equal_hugging_face(backend, case, reference)


@BOTH
def test_logits_of_single_steps_equal_hugging_face(backend: str, reference: Callable[..., Any]) -> None:
    cpu.test_logits_of_single_steps_equal_hugging_face(backend, reference)


@BOTH
def test_a_stop_token_frees_its_slot_and_pages(backend: str, reference: Callable[..., Any]) -> None:
    cpu.test_a_stop_token_inside_a_batch_frees_its_slot_and_pages_for_others(backend, reference)


@BOTH
def test_a_request_may_fill_the_whole_context(backend: str, reference: Callable[..., Any]) -> None:
    cpu.test_a_request_may_fill_the_whole_context(backend, reference)


@BOTH
def test_bfloat16_prompts_are_about_as_exact_as_hugging_face(backend: str, reference: Callable[..., Any]) -> None:
    cpu.test_bfloat16_is_about_as_exact_as_hugging_face_in_bfloat16(backend, reference)


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
@BOTH
def test_bfloat16_steps_are_about_as_exact_as_hugging_face(backend: str, rows: int, reference: Callable[..., Any]) -> None:
    """Up to 8 rows are one kernel with the cuda backend, more are one kernel a layer."""
    check_bfloat16_steps(backend, config(head_dim=16), rows, reference)


@pytest.mark.parametrize("rows", [3, 9])
@pytest.mark.parametrize(("head_dim", "kv_heads"), [(128, 4), (64, 1), (72, 2), (10, 8), (136, 8)])
def test_bfloat16_steps_of_other_heads(head_dim: int, kv_heads: int, rows: int, reference: Callable[..., Any]) -> None:
    """Tensor cores compute heads of multiples of 8 numbers up to 128."""
    check_bfloat16_steps("cuda", config(head_dim=head_dim, num_key_value_heads=kv_heads), rows, reference)


def test_bfloat16_steps_of_requests_longer_than_shared_memory(reference: Callable[..., Any]) -> None:
    """With 8 rows, a block has half of a request's tokens, more than its ring holds at one time."""
    c = config(head_dim=64, num_key_value_heads=8, max_position_embeddings=1024)
    check_bfloat16_steps("cuda", c, 8, reference, first=900)


def check_bfloat16_steps(backend: str, c: dict[str, Any], rows: int, reference: Callable[..., Any], first: int = 20) -> None:
    given = prompts(*range(first, first + 3 * rows, 3))
    kernel = make(backend, c, dtype="bfloat16", page_size=13, max_num_batched_requests=16)
    ids = [kernel.add_request(prompt) for prompt in given]
    kernel()
    kernel._executor.fill_pages(kernel.scheduler.pool.free, np.nan)
    seen = []
    for _ in range(30):
        kernel()
        seen.append(kernel._executor.last_logits()[:rows])
    ours = theirs = 0.0
    for row, (id, prompt) in enumerate(zip(ids, given)):
        tokens = kernel.tokens(id)[:-1]
        exact, rounded = (reference(c, tokens, dtype)[len(prompt) :] for dtype in (torch.float32, torch.bfloat16))
        ours += float(((np.stack([step[row] for step in seen]) - exact) ** 2).sum())
        theirs += float(((rounded - exact) ** 2).sum())
    assert 0 < ours**0.5 <= 1.5 * theirs**0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@BOTH
def test_many_steps_without_a_look_are_many_single_steps(backend: str, dtype: str) -> None:
    c, made = config("llama", head_dim=16, attention_bias=True, mlp_bias=True), []
    for parts in ([1] * 40, [40], [7, 33]):
        kernel = make(backend, c, dtype=dtype, page_size=4)
        ids = [kernel.add_request(prompt) for prompt in prompts(4, 9, 2, 6, 17)]
        for part in parts:
            kernel(steps=part)
        made.append([kernel.tokens(id) for id in ids])
    assert made[0] == made[1] == made[2] and len(made[0][0]) == 44


@BOTH
def test_tokens_are_sampled_as_by_the_reference(backend: str) -> None:
    c, made = config(), []
    for name in ("cpu", backend):
        kernel = make(name, c, temperature=1.3, top_k=40, top_p=0.95, seed=11)
        pairs = zip(prompts(4, 9, 2, 6), (0.5, 0.9, 1.0, 0.95), (1.3, 0.0, 0.7, 1.0))
        ids = [kernel.add_request(prompt, top_p=top_p, temperature=t) for prompt, top_p, t in pairs]
        kernel(steps=40)
        made.append([kernel.tokens(id) for id in ids])
    assert made[0] == made[1] and len(made[0][0]) == 44


@BOTH
def test_a_request_that_waits_gets_the_slot_of_one_that_ends_amid_many_steps(backend: str) -> None:
    c, made = config(), []
    for name in ("cpu", backend):
        kernel = make(name, c, max_num_batched_requests=2, page_size=4)
        for prompt, count in zip(prompts(3, 5, 8, 2), (4, 30, 7, 9)):
            kernel.add_request(prompt, max_new_tokens=count)
        made.append(kernel(steps=13))
    assert made[0] == made[1] and [len(made[0][id]) for id in range(4)] == [4, 13, 7, 2]


def test_one_kernel_takes_whole_steps_of_small_batches() -> None:
    c = config(head_dim=16)
    kernel = gt.PersistentKernel(backend="cuda", dtype="bfloat16", model=(c, weights(c))).compile()
    assert kernel._executor.step_kernel is not None and kernel._executor.step_kernel.most_rows == 8


def test_a_wide_model_splits_its_context_over_blocks() -> None:
    """As large as a real layer, so that every block and every stage of the ring has work."""
    c = config(hidden_size=2048, intermediate_size=5504, num_attention_heads=16, num_key_value_heads=4, head_dim=128,
               num_hidden_layers=2, vocab_size=32001, max_position_embeddings=2048)  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = {name: array.shape for name, array in weights({**c, "vocab_size": 8}).items()}
    state = {}
    for name, shape in shapes.items():
        shape = (32001, shape[1]) if shape[0] == 8 else shape
        drawn = torch.randn(shape, device="cuda", generator=generator)
        state[name] = drawn / shape[1] ** 0.5 if len(shape) == 2 else 1 + 0.2 * drawn
    given = np.random.default_rng(0).integers(0, 32001, 1500).tolist()
    logits = {}
    for dtype, whole in (("float32", False), ("bfloat16", True), ("bfloat16", False)):
        kernel = gt.PersistentKernel(backend="cuda", dtype=dtype, max_num_batched_tokens=256, model=(c, dict(state)))
        executor: Any = kernel.compile()._executor
        if not whole:
            executor.step_kernel = None
        kernel.add_request(given)
        kernel()
        rows = []
        for token in given[:8]:  # the same tokens for all
            kernel.scheduler.requests[0].tokens[-1] = token
            kernel()
            rows.append(executor.last_logits()[0])
        logits[dtype, whole] = np.stack(rows)
        kernel.finalize()
    exact = logits["float32", False]
    error = {key: np.linalg.norm(made - exact) / np.linalg.norm(exact) for key, made in logits.items()}
    assert 0 < error["bfloat16", True] <= 1.2 * error["bfloat16", False] < 0.05


# The same faults as on the CPU, planted in the sources.
CUDA_FAULTS = {
    "rotary position": ("rotary_row = position;", "rotary_row = position + (position >= 14);"),
    "mask": ("visible = position + 1,", "visible = max(position, 1),"),
    "head grouping": ("first = kv * group + chunk * GROUP", "first = kv + chunk * GROUP"),
    "page length": ("p.page_size + in_page;", "p.page_size + min(in_page, p.page_size - 2);"),
    "missing norm": ("float factor = norm ? rsqrtf(warp_sum(squares) / d + a.eps) : 1.0f;", "float factor = 1.0f;"),
}


@pytest.mark.parametrize("fault", [*CUDA_FAULTS, "softmax scale"])
def test_a_fault_planted_in_the_cuda_source_is_seen(
    fault: str,
    reference: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gt.persistent import attention
    from gt.persistent.gpu import cuda_executor

    if fault == "softmax scale":
        monkeypatch.setattr(attention, *cpu.FAULTS[fault])
    else:
        before, after = CUDA_FAULTS[fault]
        assert cuda_executor.source().count(before) == 1
        text = cuda_executor.source().replace(before, after)
        monkeypatch.setattr(cuda_executor, "source", lambda: text)
    with pytest.raises(AssertionError):
        generate("cuda", "pages of 1" if fault == "missing norm" else "pages of 13, a prompt that ends on a page", reference)
