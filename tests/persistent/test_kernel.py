"""The contract of a kernel with its callers: requests, pages, sampling, backends. None of it needs Hugging Face or torch."""

from __future__ import annotations

import collections
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import backends
from gt.persistent import OutOfPages, choice
from gt.persistent.sampling import Sampling, choose, kept, uniform
from tests.persistent.tiny import config, prompts, weights

CONFIG = config()
WEIGHTS = weights(CONFIG)


REASON = choice.reason_unavailable("openmp")
OPENMP = pytest.param("openmp", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON)))
BOTH = pytest.mark.parametrize("backend", ["cpu", OPENMP])


def make(**options: Any) -> Any:
    return gt.PersistentKernel(**{"backend": "cpu", "model": (CONFIG, WEIGHTS), **options})


def alone(prompt: list[int], count: int, **options: Any) -> list[int]:
    """Tokens of a request that has a kernel for itself."""
    kernel = make(**options)
    id = kernel.add_request(prompt, max_new_tokens=count)
    kernel(steps=count)
    return kernel.tokens(id)


@BOTH
def test_requests_join_and_leave_between_calls(backend: str) -> None:
    kernel, given = make(backend=backend, max_num_batched_requests=2, page_size=4), prompts(9, 5, 6)
    first = kernel.add_request(given[0], max_new_tokens=3)
    assert list(kernel()) == [first]
    second, third = (kernel.add_request(prompt, max_new_tokens=4) for prompt in given[1:])
    assert set(kernel()) == {first, second}
    kernel()
    assert kernel.finished(first) and not kernel.finished(second)
    assert set(kernel()) == {second, third}
    kernel(steps=10)
    assert kernel.finished(second) and kernel.finished(third) and kernel() == {}
    for id, prompt, count in zip((first, second, third), given, (3, 4, 4)):
        assert kernel.tokens(id) == alone(prompt, count)
    kernel.scheduler.check()


@BOTH
def test_a_step_that_lacks_a_page_raises_before_it_and_loses_nothing(backend: str) -> None:
    kernel, given = make(backend=backend, page_size=4, max_num_pages=4), prompts(7, 6)
    first, second = (kernel.add_request(prompt) for prompt in given)
    with pytest.raises(OutOfPages, match="needs 1 more pages of 4 tokens and 0 of 4 are free"):
        kernel(steps=20)
    before = kernel.tokens(first), kernel.tokens(second)
    assert [len(tokens) for tokens in before] == [9, 8]
    with pytest.raises(OutOfPages):
        kernel()
    assert (kernel.tokens(first), kernel.tokens(second)) == before
    kernel.cancel(second)
    kernel(steps=5)
    assert kernel.tokens(first) == alone(given[0], 7)
    kernel.scheduler.check()


def test_a_prompt_that_no_number_of_free_pages_could_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 3 pages of 4, but there are 2: raise max_num_pages"):
        make(page_size=4, max_num_pages=2).add_request(prompts(9)[0])


@BOTH
def test_reset_forgets_requests_and_finalize_ends_the_kernel(backend: str) -> None:
    kernel = make(backend=backend)
    id = kernel.add_request([1, 2, 3])
    first = kernel(steps=4)[id]
    kernel.reset()
    with pytest.raises(KeyError, match="reset forgets them"):
        kernel.tokens(id)
    again = kernel.add_request([1, 2, 3])
    assert again != id and kernel(steps=4)[again] == first
    kernel.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        kernel()


@BOTH
def test_a_seed_gives_the_same_tokens_in_any_batch(backend: str) -> None:
    options = dict(temperature=0.9, top_k=20, top_p=0.9)
    kernel, given = make(backend=backend, **options), prompts(5, 8)
    ids = [kernel.add_request(prompt, seed=7) for prompt in given]
    kernel(steps=12)
    for id, prompt in zip(ids, given):
        single = make(backend=backend, **options)
        other = single.add_request(prompt, seed=7)
        for _ in range(12):
            single()
        assert single.tokens(other) == kernel.tokens(id)
    different = make(backend=backend, **options, seed=1)
    different.add_request(given[0])
    different(steps=12)
    assert different.tokens(0) != kernel.tokens(ids[0])


def test_top_k_and_top_p_keep_the_tokens_of_their_definitions() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    assert kept(logits, Sampling(1.0, top_k=2))[0].tolist() == [1, 3]
    assert kept(logits, Sampling(1.0, top_p=0.65))[0].tolist() == [1, 3]
    assert kept(logits, Sampling(1.0, top_p=0.75))[0].tolist() == [1, 3, 2]
    assert choose(logits, Sampling(0.0), 0.99) == 1


def test_sampled_tokens_have_the_frequencies_of_the_softmax() -> None:
    logits, temperature, draws = np.array([0.5, -1.0, 2.0, 0.0, 1.0]), 0.7, 20000
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    counts = collections.Counter(choose(logits, Sampling(temperature), uniform(3, i)) for i in range(draws))
    seen = np.array([counts[i] for i in range(5)])
    assert ((seen - draws * expected) ** 2 / (draws * expected)).sum() < 20  # chi-square, 4 degrees of freedom


def test_a_fallback_warns_and_is_told() -> None:
    with pytest.warns(RuntimeWarning, match="runs on 'cpu', since 'nki' is not available"):
        kernel = make(backend="nki", fallback_backends=["cpu"])
    assert (kernel.backend, kernel.requested_backend) == ("cpu", "nki")
    assert kernel.fallback_reason == f"'nki' is not available: {backends.reason_unavailable('nki')}"
    assert make().fallback_reason is None


def test_with_nothing_available_every_candidate_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.registry(), "reason", lambda name: f"no {name} here")
    with pytest.raises(ValueError, match="'cuda' is not available: no cuda here; 'cpu' is not available: no cpu here"):
        make(backend="cuda", fallback_backends=["cpu"])


def test_an_available_backend_without_a_decode_kernel_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.registry(), "reason", lambda name: None)
    with pytest.raises(ValueError, match="'cudnn' is not available: GT has no decode kernel for it yet"):
        make(backend="cudnn")


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(use_cutlass_kernel=True), "does not support use_cutlass_kernel"),
        (dict(device="cuda"), "does not support device"),
        (dict(dtype="bfloat16"), "cannot compute in bfloat16"),
        (dict(dtype="int8"), "no dtype 'int8'"),
        (dict(world_size=2), "does not support world_size=2"),
        (dict(mpi_rank=1), "mpi_rank: expected 0 to"),
        (dict(mode="train"), "no mode 'train': known are decode, offline, onepass"),
        (dict(backend="tpu"), "no backend 'tpu'"),
        (dict(fallback_backends=["tpu"]), "no backend 'tpu'"),
        (dict(page_size=0), "page_size: expected an integer of 1 or more"),
        (dict(max_seq_length=1000), "at most the model's max_position_embeddings 256, got 1000"),
        (dict(temperature=-1.0), "temperature: expected 0"),
    ],
)
def test_unsupported_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("steps", [0, 1.5])
def test_steps_are_a_whole_number(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps: expected an integer of 1 or more, got"):
        make(prompts=[[1]])(steps=steps)


@pytest.mark.parametrize("prompt", [[], [101], [-1], [0] * 256])
def test_a_prompt_that_cannot_be_run_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="a prompt"):
        make().add_request(prompt)


def test_a_state_dict_that_does_not_fit_the_config_is_refused() -> None:
    for change, message in [
        ({"model.norm.weight": None}, "lacks 'model.norm.weight'"),
        ({"model.norm.weight": np.ones(3, np.float32)}, r"expected shape \(56,\) by the config, got \(3,\)"),
        ({"model.extra": np.ones(3, np.float32)}, "1 weights that the config does not: model.extra"),
    ]:
        changed = {name: array for name, array in {**WEIGHTS, **change}.items() if array is not None}
        with pytest.raises(ValueError, match=message):
            make(model=(CONFIG, changed))
    with pytest.raises(ValueError, match="no model family 'bert'"):
        make(model=({"model_type": "bert"}, WEIGHTS))
    with pytest.raises(ValueError, match="rope_type 'yarn' is not supported"):
        make(model=(config(rope_scaling={"rope_type": "yarn"}), WEIGHTS))


def test_weights_come_from_safetensors_files_and_from_gt(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    names = sorted(WEIGHTS)
    save_file({name: WEIGHTS[name] for name in names[:5]}, tmp_path / "a.safetensors")
    save_file({name: WEIGHTS[name] for name in names[5:]}, tmp_path / "b.safetensors")
    expected = alone([1, 2, 3], 8)
    assert alone([1, 2, 3], 8, model=(CONFIG, tmp_path)) == expected
    assert alone([1, 2, 3], 8, model=(CONFIG, [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])) == expected
    with gt.testing.cluster(1, engine="numpy"):
        state = {name: gt.tensor(array) for name, array in WEIGHTS.items()}
        assert alone([1, 2, 3], 8, model=(CONFIG, state)) == expected


def test_bfloat16_files_are_read(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in WEIGHTS.items()}
    save_file(rounded, tmp_path / "model.safetensors")
    wide = {name: array.astype(np.float32) for name, array in rounded.items()}
    expected = alone([1, 2, 3], 8, model=(CONFIG, wide))
    assert alone([1, 2, 3], 8, model=(CONFIG, tmp_path / "model.safetensors")) == expected


def test_pages_that_fit_counts_keys_and_values_of_all_layers() -> None:
    page = 2 * 2 * 16 * 2 * 12 * 4  # keys and values, layers, tokens, kv heads, head_dim, bytes
    assert gt.pages_that_fit(10 * page, CONFIG, 16) == 10 and gt.pages_that_fit(10 * page - 1, CONFIG, 16) == 9
    assert gt.pages_that_fit(10 * page, CONFIG, 16, gt.bfloat16) == 20
    kernel = make(max_num_pages=10).compile()
    assert kernel._executor.cache.nbytes == 10 * page


@BOTH
def test_more_workers_give_the_same_tokens(backend: str) -> None:
    assert alone([5, 6, 7], 20, backend=backend, num_workers=3) == alone([5, 6, 7], 20)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no sched_setaffinity")
def test_the_compiled_loop_takes_a_thread_for_each_core_it_may_run_on() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert make(backend="openmp").compile()._executor.model.threads == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert make(backend="openmp").compile()._executor.model.threads == len(allowed)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no sched_setaffinity")
def test_threads_that_share_a_core_give_the_same_tokens() -> None:
    """All but one are asleep in the barrier then. A thread's affinity is that of the threads it starts."""
    made = []

    def run() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        made.append(alone([5, 6, 7], 20, backend="openmp", num_workers=4))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert made == [alone([5, 6, 7], 20)]


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_compiled_loop_samples_as_the_reference_does() -> None:
    options = dict(temperature=1.3, top_k=40, top_p=0.95, seed=11)
    made = []
    for backend, steps in (("cpu", 1), ("openmp", 1), ("openmp", 40)):
        kernel = make(backend=backend, **options, num_workers=2, max_num_batched_tokens=2)
        ids = [kernel.add_request(prompt, top_p=top_p) for prompt, top_p in zip(prompts(4, 9, 2, 6), (0.5, 0.9, 1.0, 0.95))]
        for _ in range(40 // steps):
            kernel(steps=steps)
        made.append([kernel.tokens(id) for id in ids])
    assert made[0] == made[1] == made[2] and len(made[0][0]) == 44


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_request_that_waits_gets_the_slot_of_one_that_ends_amid_many_steps() -> None:
    kernels = [make(backend=backend, max_num_batched_requests=2, page_size=4) for backend in ("cpu", "openmp")]
    for kernel in kernels:
        for prompt, count in zip(prompts(3, 5, 8, 2), (4, 30, 7, 9)):
            kernel.add_request(prompt, max_new_tokens=count)
    made = [kernel(steps=13) for kernel in kernels]
    assert made[0] == made[1] and [len(made[0][id]) for id in range(4)] == [4, 13, 7, 2]


def build_by_layers(kernel: Any) -> None:
    """The same Qwen3, by layer calls."""

    def w(name: str) -> Any:
        return kernel.attach_input(WEIGHTS[f"model.{name}.weight"], name=name)

    angles = np.arange(256)[:, None] * 10000.0 ** (-np.arange(0, 12, 2) / 12)
    cos, sin = (kernel.attach_input(table.astype(np.float32), name="table") for table in (np.cos(angles), np.sin(angles)))
    x = kernel.embed_layer(input=kernel.attach_input(name="tokens"), weight=w("embed_tokens"))
    for i in range(2):
        part = f"layers.{i}."
        q, k, v = (WEIGHTS[f"model.{part}self_attn.{p}_proj.weight"] for p in "qkv")
        qkv_weight = kernel.attach_input(np.concatenate([q, k, v]), name="qkv")
        qkv = kernel.rmsnorm_linear_layer(input=x, weight_norm=w(part + "input_layernorm"), weight_linear=qkv_weight)
        attended = kernel.paged_attention_layer(
            input=qkv, num_heads=8, num_kv_heads=2, head_dim=12, q_norm=w(part + "self_attn.q_norm"),
            k_norm=w(part + "self_attn.k_norm"), cos_pos_embed=cos, sin_pos_embed=sin,
        )  # fmt: skip
        x = kernel.linear_with_residual_layer(input=attended, weight=w(part + "self_attn.o_proj"), residual=x)
        x = kernel.allreduce_layer(input=x)
        normed = kernel.rmsnorm_layer(input=x, weight=w(part + "post_attention_layernorm"))
        both = np.concatenate([WEIGHTS[f"model.{part}mlp.{p}_proj.weight"] for p in ("gate", "up")])
        gate_up = kernel.linear_layer(input=normed, weight=kernel.attach_input(both, name="gate_up"))
        gated = kernel.silu_mul_layer(input=gate_up, output=kernel.new_tensor(76, name="gated"))
        x = kernel.linear_with_residual_layer(input=gated, weight=w(part + "mlp.down_proj"), residual=x)
    head = kernel.attach_input(WEIGHTS["lm_head.weight"], name="head")
    kernel.argmax_layer(input=kernel.rmsnorm_linear_layer(input=x, weight_norm=w("norm"), weight_linear=head))


@BOTH
def test_layer_calls_build_the_model_that_load_model_builds(backend: str) -> None:
    kernel = gt.PersistentKernel(backend=backend, max_seq_length=256)
    build_by_layers(kernel)
    id = kernel.add_request([3, 1, 4, 1, 5], max_new_tokens=20)
    kernel(steps=20)
    assert kernel.tokens(id) == alone([3, 1, 4, 1, 5], 20)


def test_layer_calls_check_shapes_and_order() -> None:
    kernel = gt.PersistentKernel(backend="cpu")
    with pytest.raises(ValueError, match="no argmax_layer: call load_model"):
        kernel()
    x = kernel.embed_layer(input=kernel.attach_input(name="tokens"), weight=kernel.attach_input(np.ones((9, 4), "f"), name="e"))
    weight = kernel.attach_input(np.ones((9, 5), "f"), name="w")
    with pytest.raises(ValueError, match=r"linear_layer: expected a weight \(output width, 4\)"):
        kernel.linear_layer(input=x, weight=weight)
    with pytest.raises(ValueError, match="expected q, k and v of width 16, got 'activation0' of width 4"):
        kernel.paged_attention_layer(input=x, num_heads=2, num_kv_heads=1, head_dim=4)
    with pytest.raises(ValueError, match="argmax_layer: expected a number per token id"):
        kernel.argmax_layer(input=x)
    unwritten = kernel.new_tensor(4, name="nothing")
    head = kernel.attach_input(np.ones((9, 4), "f"), name="head")
    kernel.argmax_layer(input=kernel.linear_layer(input=unwritten, weight=head))
    with pytest.raises(ValueError, match="Linear reads 'nothing' before any layer writes it"):
        kernel.compile()


def test_every_executor_that_the_registry_names_is_there() -> None:
    named = [row.decode for row in backends.ROWS if row.decode]
    assert len(named) == 11
    for path in named:
        module, _, cls = path.partition(":")
        found = importlib.util.find_spec(module)
        assert found is not None and found.origin is not None and f"class {cls}" in Path(found.origin).read_text()
