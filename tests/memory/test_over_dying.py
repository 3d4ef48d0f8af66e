"""Updates overwrite parameters that die with them, and no value that is still referenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.worker.engine.torch import training
from gt.worker.engine.torch.training import adam_in_place, over_dying

A, G = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.linspace(2, -1, 12, dtype=np.float32).reshape(3, 4)
NUMBERS = (1e-2, 0.9, 0.99, 1e-8, 0.1, 3)


def _step(make: Callable[[], tuple[torch.Tensor, ...]]) -> list[bool]:
    """One update as a trace would call it; for parameter and state, whether they were written over."""
    p, m, v = make()
    g = torch.tensor(G)
    before = [t.data_ptr() for t in (p, m, v)]
    ((a, b, c),) = over_dying(adam_in_place, 1, [(p, g, m, v, *NUMBERS)], decoupled=True, maximize=False)
    return [t.data_ptr() == place for t, place in zip((a, b, c), before)]


def test_a_value_with_one_owner_is_written_over() -> None:
    assert _step(lambda: (torch.tensor(A), torch.zeros(3, 4), torch.zeros(3, 4))) == [True, True, True]


def test_a_value_with_another_name_a_view_or_a_reader_is_not() -> None:
    kept: list = []

    def make() -> tuple[torch.Tensor, ...]:
        p, m, v = torch.tensor(A), torch.zeros(3, 4), torch.zeros(3, 4)
        kept.extend((p, m.reshape(-1), memoryview(v.view(torch.uint8).numpy())))
        return p, m, v

    assert _step(make) == [False, False, False]
    np.testing.assert_array_equal(kept[0].numpy(), A)
    assert not kept[1].any() and not np.asarray(kept[2]).any()


def test_memory_of_others_and_strided_values_are_not() -> None:
    memory = A.copy()
    assert _step(lambda: (torch.from_numpy(memory), torch.zeros(4, 3).t(), torch.zeros(3, 4))) == [False, False, True]
    np.testing.assert_array_equal(memory, A)


@pytest.mark.parametrize(
    "name, settings", [("AdamW", {}), ("Adam", {"amsgrad": True}), ("SGD", {}), ("SGD", {"momentum": 0.9})]
)
def test_values_held_across_updates_are_unchanged(name: str, settings: dict) -> None:
    """The loop is replayed as a trace after some turns; each turn holds the value before in another way."""
    with gt.testing.cluster(1, "pytorch"):
        w, v = gt.nn.Parameter(gt.tensor(A)), torch.nn.Parameter(torch.tensor(A))
        ours, theirs = (getattr(lib.optim, name)([p], lr=0.1, **settings) for lib, p in ((gt, w), (torch, v)))
        kept: list = []
        for i in range(40):
            before, want = w.detach().clone(), v.detach().clone()
            copy, read = w.detach().clone(), w.detach().numpy() if i % 7 == 3 else None
            for p, o in ((w, ours), (v, theirs)):
                o.zero_grad()
                (p * p).sum().backward()
                o.step()
            moved = (w.detach() - before).abs().sum()
            np.testing.assert_allclose(moved.item(), (v.detach() - want).abs().sum().item(), rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(before.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(copy.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
            if read is not None:
                kept.append((read, want))
        for read, want in kept:
            np.testing.assert_allclose(read, want.numpy(), rtol=1e-4, atol=1e-5)


def test_an_old_value_read_after_the_update_within_a_trace_is_the_old_one() -> None:
    """Nothing is read by the client in between, so that the whole turn is one trace, the difference included."""
    with gt.testing.cluster(1, "pytorch"):
        w = gt.nn.Parameter(gt.tensor(A))
        o = gt.optim.SGD([w], lr=0.1)
        total = gt.zeros(())
        v, want = torch.tensor(A), 0.0
        for _ in range(60):
            before = w.detach()
            o.zero_grad()
            (w * w).sum().backward()
            o.step()
            total = total + (before - w.detach()).sum()
            del before
            want += float((0.2 * v).sum())
            v = v - 0.2 * v
        np.testing.assert_allclose(total.item(), want, atol=1e-4)
        np.testing.assert_allclose(w.detach().numpy(), v.numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1, "maximize": True}, {"momentum": 0.9, "weight_decay": 5e-4},
                                      {"momentum": 0.9, "nesterov": True, "maximize": True}])  # fmt: skip
def test_many_steps_of_sgd_at_once_are_pytorchs_and_those_one_by_one(settings: dict, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(n, 7, dtype=dtype, generator=generator) for n in (1, 40, 300)]
    slopes = [(p * 3 + 1).t().contiguous().t() for p in made]
    theirs = [torch.nn.Parameter(p.clone()) for p in made]
    for p, g in zip(theirs, slopes):
        p.grad = g.clone()
    torch.optim.SGD(theirs, lr=0.1, **settings).step()
    gathered: Any
    extra: dict
    rows: list[Any]
    maximize, numbers = settings.get("maximize", False), (0.1, settings.get("weight_decay", 0.0))
    if "momentum" in settings:  # PyTorch's first step leaves the gradient in the buffer, as momentum does with zeros
        gathered, extra = training.sgd_momentum_in_place, {"nesterov": settings.get("nesterov", False)}
        rows = [(p, g, torch.zeros_like(p), *numbers, 0.9, 0.0) for p, g in zip(made, slopes)]
        single = [training.sgd_momentum(*row, maximize=maximize, **extra)[0] for row in rows]
    else:
        gathered, extra = training.sgd_in_place, {}
        rows = [(p, g, *numbers) for p, g in zip(made, slopes)]
        single = [training.sgd(*row, maximize=maximize) for row in rows]
    copies = [(row[0].clone(), *row[1:]) for row in rows]
    together = [found[0] for found in gathered(copies, maximize=maximize, **extra)]
    assert all(torch.equal(a, b) for a, b in zip(single, together))
    assert all(torch.allclose(a, b.detach(), rtol=1e-6) for a, b in zip(single, theirs))
