"""Tokens and logits of every backend against Hugging Face transformers, which shares no code with GT."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.persistent import attention, choice
from gt.persistent.openmp import build as openmp_build
from gt.persistent.openmp import executor as openmp_executor
from tests.persistent.tiny import config, environment, prompts, weights

torch = pytest.importorskip("torch")
REASON = choice.reason_unavailable("openmp")
OPENMP = pytest.param("openmp", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON)))


def unless_missing(name: str, *marks: Any) -> Any:
    reason = choice.reason_unavailable(name)
    return pytest.param(name, marks=[pytest.mark.skipif(reason is not None, reason=str(reason)), *marks])


INTEL, OPENCL = [unless_missing("mkl"), unless_missing("mkldnn")], unless_missing("opencl")
# The slow ones have the same cases, and one of each kind in the default run.
SLOW = [unless_missing(name, pytest.mark.slow) for name in ("pytorch", "mkl", "mkldnn", "opencl")]
BACKENDS = ["cpu", OPENMP, *SLOW]
# Every case: the model, the kernel's options, the lengths of the prompts.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "pages of 1": (config(), dict(page_size=1), (5, 1)),
    "pages of 13, a prompt that ends on a page": (config("llama"), dict(page_size=13), (13, 26, 3)),
    "pages of 16, prompts in chunks": (
        config(num_key_value_heads=8),
        dict(page_size=16, max_num_batched_tokens=7),
        (16, 40, 1),
    ),
    "pages of 64, groups of 8": (config(num_key_value_heads=1, head_dim=10), dict(page_size=64), (64, 9)),
    "tied head, biases, scaled rotary": (
        config(
            "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
            rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=64),
        ),
        dict(page_size=16),
        (20, 2),
    ),
}  # fmt: skip
FAULTS = {
    "page length": ("held_in_pages", lambda length, size: [size] * ((length - 1) // size) + [length % size]),
    # Rotary attention depends on distances alone, so a shift of all tokens changes nothing; one of the later tokens does.
    "rotary position": ("rotary_position", lambda position: position + (position >= 14)),
    "softmax scale": ("softmax_scale", lambda head_dim: head_dim**-1.0),
    "mask": ("visible", lambda position: max(position, 1)),
    "head grouping": ("head_groups", lambda heads, kv_heads: [head % kv_heads for head in range(heads)]),
}


def hugging_face_logits() -> Iterator[Callable[..., Any]]:
    """Logits of Hugging Face's model for a list of tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
    classes = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    made: dict[str, Any] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def logits(c: dict[str, Any], tokens: list[int], dtype: Any = torch.float32) -> np.ndarray:
        key = f"{c}{dtype}"
        if key not in made:
            kind, model = classes[c["model_type"]]
            made[key] = model(kind(**{k: v for k, v in c.items() if k != "model_type"})).eval()
            state = {name: torch.from_numpy(array) for name, array in weights(c).items()}
            if c["tie_word_embeddings"]:
                state["lm_head.weight"] = state["model.embed_tokens.weight"]
            made[key].load_state_dict(state)
            made[key].to(dtype)
        with torch.inference_mode(), warnings.catch_warnings():
            # PyTorch's own of bfloat16 on a CPU without instructions for it, where it then does without oneDNN.
            warnings.filterwarnings("ignore", "mkldnn_matmul failed")
            return made[key](torch.tensor([tokens])).logits[0].float().numpy()

    yield logits
    torch.set_num_threads(before)


reference = pytest.fixture(scope="module", name="reference")(hugging_face_logits)


def last_logits(kernel: Any) -> Callable[[], np.ndarray]:
    """Gives the logits that the last token was chosen from, of a kernel with one request."""
    executor: Any = kernel.compile()._executor
    if executor.runs_steps:  # its steps are one call, which leaves the logits of the last one behind
        return lambda: executor.last_logits()[0]
    seen: list[np.ndarray] = []
    forward = executor.forward
    executor.forward = lambda batch: seen.append(forward(batch)) or seen[-1]
    return lambda: seen[-1][0]


def make(backend: str, c: dict[str, Any], **options: Any) -> Any:
    if backend not in ("cuda", "triton", "opencl"):
        options["num_workers"] = 1  # the models are too small for more threads
    if backend == "pytorch":
        options["device"] = "cpu"  # it would choose a GPU, which has no workers
    return gt.PersistentKernel(backend=backend, model=(c, weights(c)), **options)


def compare(kernel: Any, c: dict[str, Any], reference: Callable[..., Any], ids: list[int], prompts: list[list[int]]) -> None:
    """Every generated token is Hugging Face's greedy choice after the tokens before it."""
    for id, prompt in zip(ids, prompts):
        tokens = kernel.tokens(id)
        expected = reference(c, tokens[:-1])[len(prompt) - 1 :].argmax(-1).tolist()
        assert tokens[: len(prompt)] == prompt and tokens[len(prompt) :] == expected


def generate(backend: str, case: str, reference: Callable[..., Any], steps: int = 100) -> None:
    c, options, lengths = CASES[case]
    kernel, given = make(backend, c, **options), prompts(*lengths)
    ids = [kernel.add_request(prompt) for prompt in given]
    for part in (1, 60, steps - 61):
        made = kernel(steps=part)
        assert {id: len(tokens) for id, tokens in made.items()} == dict.fromkeys(ids, part)
        # Pages that a step recycles hold whatever was there before.
        kernel._executor.fill_pages(kernel.scheduler.pool.free, np.nan)
    compare(kernel, c, reference, ids, given)
    kernel.scheduler.check()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hundred_greedy_tokens_equal_hugging_face(backend: str, case: str, reference: Callable[..., Any]) -> None:
    generate(backend, case, reference)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["cpu", OPENMP, "pytorch"])
def test_logits_equal_hugging_face(backend: str, case: str, reference: Callable[..., Any]) -> None:
    c, options, lengths = CASES[case]
    kernel, given = make(backend, c, mode="onepass", **options), prompts(*lengths)
    ids = [kernel.add_request(prompt) for prompt in given]
    kernel._executor.fill_pages(kernel.scheduler.pool.free, np.nan)
    found = kernel()
    for id, prompt in zip(ids, given):
        assert np.abs(found[id] - reference(c, prompt)).max() < 1e-4
        assert kernel.finished(id)


@pytest.mark.parametrize("backend", ["cpu", OPENMP, "pytorch", *INTEL, OPENCL])
def test_logits_of_single_steps_equal_hugging_face(backend: str, reference: Callable[..., Any]) -> None:
    c = config()
    kernel = make(backend, c, page_size=4)
    id = kernel.add_request(prompts(6)[0])
    logits, rows = last_logits(kernel), []
    for _ in range(12):
        kernel()
        rows.append(logits())
    expected = reference(c, kernel.tokens(id)[:-1])[5:]
    assert np.abs(np.stack(rows) - expected).max() < 1e-4


LOGGED = """
import gt
from tests.persistent.tiny import config, weights

c = config()
for backend in ("mkl", "mkldnn"):
    print("backend", backend, flush=True)
    gt.PersistentKernel(backend=backend, model=(c, weights(c)), prompts=[[1, 2, 3], [4, 5]])(steps=2)
"""


@pytest.mark.skipif(any(choice.reason_unavailable(name) for name in ("mkl", "mkldnn")), reason="no MKL or oneDNN")
def test_the_logs_of_mkl_and_onednn_show_every_product() -> None:
    """Torch could compute the same without them."""
    settings = environment(MKL_VERBOSE="1", ONEDNN_VERBOSE="1", DNNL_VERBOSE="1")
    command = [sys.executable, "-c", LOGGED]
    out = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120, check=True).stdout
    by_mkl, by_onednn = (part.splitlines() for part in out.split("backend mkl\n")[1].split("backend mkldnn\n"))
    products = 2 * (2 * 4 + 1)  # of two steps: four linear layers in each of two layers, and the head
    assert sum("exec" in line and "inner_product" in line for line in by_onednn) == products
    assert sum("MKL_VERBOSE SGEMM" in line for line in by_mkl) >= products
    assert not any("inner_product" in line for line in by_mkl)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", ["cpu", *SLOW])
def test_a_planted_fault_is_seen(
    backend: str, fault: str, reference: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, *FAULTS[fault])
    with pytest.raises((AssertionError, ValueError)):
        generate(backend, "pages of 13, a prompt that ends on a page", reference)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_norm_of_q_and_k_is_seen(
    backend: str, reference: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_norms(self: Any, **options: Any) -> Any:
        return original(self, **{**options, "q_norm": None, "k_norm": None})

    original = gt.PersistentKernel.paged_attention_layer
    monkeypatch.setattr(gt.PersistentKernel, "paged_attention_layer", without_norms)
    with pytest.raises(AssertionError):
        generate(backend, "pages of 1", reference)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stop_token_inside_a_batch_frees_its_slot_and_pages_for_others(backend: str, reference: Callable[..., Any]) -> None:
    c, given = config(), prompts(7, 12, 4, 9, 21)
    free = make(backend, c, mode="offline", page_size=4, max_seq_length=60)
    for prompt in given:
        free.add_request(prompt)
    free()
    generated = [free.tokens(id)[len(prompt) :] for id, prompt in enumerate(given)]
    stop = generated[0][9]
    kernel = make(
        backend,
        c,
        mode="offline",
        page_size=4,
        max_seq_length=60,
        max_num_batched_requests=2,
        max_num_pages=30,
        eos_token_id=stop,
    )
    ids = [kernel.add_request(prompt) for prompt in given]
    kernel._executor.fill_pages(kernel.scheduler.pool.free, np.nan)
    kernel()
    for id, prompt in zip(ids, given):
        tokens = kernel.tokens(id)
        assert kernel.finished(id) and (tokens[-1] == stop or len(tokens) == 60) and stop not in tokens[len(prompt) : -1]
    assert len(kernel.tokens(ids[0])) <= len(given[0]) + 10
    compare(kernel, c, reference, ids, given)
    kernel.scheduler.check()
    assert len(kernel.scheduler.pool.free) == 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_may_fill_the_whole_context(backend: str, reference: Callable[..., Any]) -> None:
    c = config(max_position_embeddings=48)
    kernel = make(backend, c, mode="offline", page_size=16)
    given = prompts(47, 30)
    ids = [kernel.add_request(prompt) for prompt in given]
    kernel()
    assert [len(kernel.tokens(id)) for id in ids] == [48, 48]
    compare(kernel, c, reference, ids, given)


@pytest.mark.parametrize("backend", [OPENMP, "pytorch"])
def test_bfloat16_is_about_as_exact_as_hugging_face_in_bfloat16(backend: str, reference: Callable[..., Any]) -> None:
    c, given = config(), prompts(90, 55, 70)
    kernel = make(backend, c, mode="onepass", dtype="bfloat16")
    ids = [kernel.add_request(prompt) for prompt in given]
    found = kernel()
    ours = theirs = 0.0
    for id, prompt in zip(ids, given):
        exact = reference(c, prompt)
        ours += float(((found[id] - exact) ** 2).sum())
        theirs += float(((reference(c, prompt, torch.bfloat16) - exact) ** 2).sum())
    assert 0 < ours**0.5 <= 1.5 * theirs**0.5


# The same faults, planted in the source of the compiled loop.
SOURCE_FAULTS = {
    "page length": ("held = std::min(size, visible - start)", "held = visible - start > size ? size : visible % size"),
    "rotary position": ("rotary_row = position;", "rotary_row = position + (position >= 14);"),
    "softmax scale": ("scale = 1.0f / std::sqrt(float(d))", "scale = 1.0f / float(d)"),
    "mask": ("visible = batch.positions[r] + 1", "visible = std::max<int64_t>(batch.positions[r], 1)"),
    "head grouping": ("kv = head / (l.heads / l.kv_heads)", "kv = head % l.kv_heads"),
}


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_fault_planted_in_the_compiled_loop_is_seen(
    fault: str, reference: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in [*openmp_build.SOURCES.glob("*.h"), *openmp_build.SOURCES.glob("*.cpp")]:
        (tmp_path / file.name).write_text(file.read_text())
    before, after = SOURCE_FAULTS[fault]
    text = (tmp_path / "decode.cpp").read_text()
    assert text.count(before) == 1
    (tmp_path / "decode.cpp").write_text(text.replace(before, after))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(openmp_executor, "build", lambda: openmp_build.build(tmp_path))
    with pytest.raises(AssertionError):
        generate("openmp", "pages of 13, a prompt that ends on a page", reference)
