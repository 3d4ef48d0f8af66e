"""On a CPU, short kernels take one thread and long ones all, inside runs of instructions alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gt
from gt.ops import TABLE, Kind
from gt.spec import Spec, float32
from gt.worker.engine.torch import aten
from gt.worker.engine.torch.engine import TorchEngine
from gt.worker.engine.torch.kernels import GATHERED
from gt.worker.engine.torch.threads import SPLIT, WAKE, KernelThreads, is_long


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def _spec(*shape: int) -> Spec:
    return Spec(shape, float32)


def test_products_convolutions_and_updates_are_long_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.engine.torch.threads.LONG", 8e-5)  # as on x86-64
    conv = ((1, 1), (1, 1), (1, 1), 1)
    assert not is_long(Kind(TABLE["linear"], (_spec(128, 64), _spec(256, 64)), (), (_spec(128, 256),), ""))
    assert is_long(Kind(TABLE["linear"], (_spec(1024, 256), _spec(256, 256)), (), (_spec(1024, 256),), ""))
    assert not is_long(Kind(TABLE["conv"], (_spec(4, 8, 8, 8), _spec(8, 8, 3, 3)), conv, (_spec(4, 8, 8, 8),), ""))
    assert not is_long(Kind(TABLE["conv"], (_spec(8, 8, 16, 16), _spec(8, 8, 3, 3)), conv, (_spec(8, 8, 16, 16),), ""))
    assert is_long(Kind(TABLE["conv"], (_spec(32, 8, 16, 16), _spec(8, 8, 3, 3)), conv, (_spec(32, 8, 16, 16),), ""))
    assert not is_long(Kind(TABLE["inverse"], (_spec(8, 8),), (), (_spec(8, 8),), ""))
    assert is_long(Kind(TABLE["inverse"], (_spec(512, 512),), (), (_spec(512, 512),), ""))


def test_a_run_takes_one_thread_and_its_long_kernels_all() -> None:
    threads = KernelThreads()
    assert threads.all(torch.get_num_threads) == 3
    with threads:
        assert torch.get_num_threads() == 1 and threads.all(torch.get_num_threads) == 3
        with threads:  # a run within a run
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
        small, large = torch.zeros(2), torch.zeros(SPLIT)
        seen = [threads.for_updates(lambda calls: torch.get_num_threads(), [(small,), (p,)]) for p in (small, large)]
        assert seen == [1, 3]
    assert torch.get_num_threads() == 3
    with threads:  # in which no kernel has woken them
        larger = torch.zeros(WAKE)
        assert [threads.for_updates(lambda calls: torch.get_num_threads(), [(p,)]) for p in (large, larger, large)] == [1, 3, 3]
    with pytest.raises(ValueError), threads:
        threads.all(int, "no number")
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("update", ["adam", "sgd", "sgd_momentum"])
def test_an_update_has_the_same_bits_on_one_thread_and_on_all(update: str, dtype: torch.dtype) -> None:
    sizes = (SPLIT + 7, 3 * SPLIT + 1, 5)
    settings = {"adam": {"decoupled": True, "maximize": False}, "sgd": {"maximize": False}}.get(
        update, {"nesterov": True, "maximize": False}
    )
    state, numbers = {"adam": (2, (1e-3, 0.9, 0.99, 1e-8, 0.1, 3)), "sgd": (0, (0.1, 0.01))}.get(
        update, (1, (0.1, 0.01, 0.9, 0.0))
    )
    found = []
    for threads in (1, 3):
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        calls = [(*[torch.rand(n, dtype=dtype) for _ in range(2 + state)], *numbers) for n in sizes]
        found.append(GATHERED[update](calls, **settings))
    assert all(torch.equal(a, b) for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))


@pytest.mark.default("GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE")  # the compiler traces kernels in a thread of its own
def test_instructions_run_so_on_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, set[int]] = {}
    plain = TorchEngine.plain

    def noting(self: TorchEngine, kind: Kind):
        run = plain(self, kind)

        def kernel(*operands):
            seen.setdefault(kind.outs[0].numel, set()).add(torch.get_num_threads())
            return run(*operands)

        return kernel

    monkeypatch.setattr(TorchEngine, "plain", noting)
    with gt.testing.cluster(engine="pytorch"):
        for n in (8, 512) * 8:  # by itself at first, then as a trace
            x = gt.tensor(np.full((n, n), 1 / n, np.float32))
            y = ((x @ x) @ x - 2 * x) @ x
            assert float(y[0, 0]) == pytest.approx(-1 / n)
    assert seen[64] == {1} and seen[512 * 512] == {3} and torch.get_num_threads() == 3


def test_functions_of_aten_are_bindings_or_single_overloads() -> None:
    assert aten.native_layer_norm is torch.native_layer_norm
    assert type(aten.native_layer_norm_backward) is torch._ops.OpOverload
    assert type(aten.index_put_) is torch._ops.OpOverload  # with None among the places
    with pytest.raises(AttributeError):
        getattr(aten, "no_such_function")  # noqa: B009
