"""Writes through views, as in PyTorch, though values on the workers never change."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings

import gt
from gt.config import ShardConfig, SignalConfig
from gt.testing import cluster
from tests.memory.view_programs import Machine, Step, steps

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 40))  # of each kind of program; a long run asks for more
LENIENT = (
    "view size is not compatible",
    "or another view of its base",
)  # writes that PyTorch refuses and GT does: docs/design/views.md


def same(mine: gt.Tensor, theirs: torch.Tensor) -> None:
    assert tuple(mine.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


def compare(program: list[Step], grad: bool) -> None:
    """Run a program in both, step by step; a step that one refuses must be refused by the other."""
    mine, theirs = Machine(gt, grad), Machine(torch, grad)
    for step in program:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, wanted = mine.do(step), theirs.do(step)
        if not found and any(words in wanted for words in LENIENT):
            return
        assert bool(found) == bool(wanted), f"{step}: GT {found or 'did it'}, PyTorch {wanted or 'did it'}"
    for x, y in zip(mine.tensors, theirs.tensors):
        same(x, y)
    if grad:
        try:
            theirs.loss().backward()
        except RuntimeError as wrong:
            assert any(words in str(wrong) for words in (*LENIENT, "more than one element")), wrong
            note(f"PyTorch has no gradient: {wrong}")
            return
        mine.loss().backward()
        same(mine.w.grad, theirs.w.grad)


SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
def test_random_programs_of_views_and_writes_equal_pytorch(engine: str, grad: bool) -> None:
    with cluster(engine=engine):
        SETTINGS(given(steps())(lambda program: compare(program, grad)))()


@pytest.mark.parametrize("axis", [0, 1])
def test_random_programs_on_tensors_over_three_workers_equal_pytorch(axis: int) -> None:
    with cluster(3):
        gt.register_config("cut", SignalConfig(ShardConfig(axis=axis)))
        with gt.signal.context("cut"):
            SETTINGS(given(steps())(lambda program: compare(program, True)))()


def _rows(m: Any, x: Any) -> None:
    for row in x:
        row += 1


def _weight(m: Any, x: Any) -> None:
    lin = m.nn.Linear(3, 3)
    with m.no_grad():
        lin.weight.copy_(x)
        lin.weight[0].zero_()
        m.nn.init.ones_(lin.weight[1])
        lin.weight.data[2, :2] = 8
        x.copy_(lin.weight)


def _iadd(x: Any, value: Any) -> None:
    x += value


def _put(x: Any, index: Any, value: Any) -> None:
    x[index] = value


def _buffer(m: Any, x: Any) -> None:
    module = m.nn.Module()
    module.register_buffer("seen", x)
    module.seen[0] += 5
    module.seen.mul_(2)


def _data(m: Any, x: Any) -> None:
    x.data[0] = 3
    x.data.mul_(2)
    x.detach()[1:].add_(1)
    y = m.ones(3, 3)
    x.data = y
    y[2] = 9


EXAMPLE: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda m, x: x[:2].fill_(5),
    "view": lambda m, x: _iadd(x.view(-1), 1),
    "transposed": lambda m, x: _put(x.t(), 0, 7),
    "rows": _rows,
    "weight": _weight,
    "cache": lambda m, x: x[:, :2].copy_(m.ones(3, 2)),
    "reshape of a transposed copies": lambda m, x: x.t().reshape(-1).zero_(),
    "reshape of rows is a view": lambda m, x: x[1:].reshape(-1).zero_(),
    "contiguous copies a strided tensor": lambda m, x: x.t().contiguous().zero_(),
    "contiguous returns a contiguous tensor": lambda m, x: x[1:].contiguous().zero_(),
    "squeezed": lambda m, x: x[1:2].squeeze(0).unsqueeze(-1).add_(4),
    "pieces": lambda m, x: [p.mul_(i) for i, p in enumerate((*x.chunk(2), *x.split(1, 1), *x.unbind(1)))],
    "diagonal": lambda m, x: x.diagonal().fill_(9),
    "every second": lambda m, x: x.flatten()[::2].zero_(),
    "one of an expanded": lambda m, x: x[0].expand(2, 3)[0].add_(1),
    "expanded": lambda m, x: x[:1].expand(2, 3).fill_(1),
    "windows": lambda m, x: x.unfold(1, 2, 1)[:, 0].zero_(),
    "transposed in place": lambda m, x: x.t().clone().t_().zero_(),
    "moved": lambda m, x: x.view(1, 3, 3).movedim(0, -1).swapaxes(0, 1)[2].mul_(3),
    "copies are apart": lambda m, x: [c.zero_() for c in (x.clone(), m.tensor(x.numpy()), x.repeat(1, 1), x.diag(), x.tile(1))],
    "buffer": _buffer,
    "data": _data,
    "parameter of a tensor": lambda m, x: m.nn.Parameter(x).data.add_(1),
}


@pytest.mark.parametrize("name", EXAMPLE)
def test_a_write_through_a_view_is_seen_by_its_base_and_by_earlier_views(pool: Any, name: str) -> None:
    data = np.arange(9, dtype="f4").reshape(3, 3)
    found = []
    for m in (gt, torch):
        x = m.tensor(data)
        earlier = [x.view(-1), x.t(), x[1], x.detach(), x.data]
        EXAMPLE[name](m, x)
        found.append([x, *(earlier if name != "data" else ())])
    for mine, theirs in zip(*found):
        same(mine, theirs)


def _gradient(m: Any, change: Callable[[Any, Any], Any]) -> list[Any]:
    w = m.tensor(np.arange(6, dtype="f4").reshape(2, 3), requires_grad=True)
    y = w * 3
    before = y[0]
    change(y, w)
    (y.sum() + (before * before).sum() + (y.t() * 2).sum()).backward()
    return [w.grad, y, before]


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda y, w: _put(y, 0, 2.0),
    "leaf": lambda y, w: _put(y, (slice(None), 0), w[1, 1] * 5),
    "view": lambda y, w: y.view(-1)[1:3].mul_(w[0, 1:]),
    "transposed": lambda y, w: y.t()[1].copy_(w[:, 2]),
    "base": lambda y, w: y.add_(w),
    "detached": lambda y, w: y.detach()[0].zero_(),
    "all": lambda y, w: y.zero_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_flow_through_writes_as_pytorch_s(pool: Any, name: str) -> None:
    for mine, theirs in zip(_gradient(gt, CHANGES[name]), _gradient(torch, CHANGES[name])):
        same(mine, theirs)


def _leaf(m: Any) -> Any:
    return m.ones(3, 3, requires_grad=True)


def _unseen(m: Any) -> Any:
    base = _leaf(m) * 1
    with m.no_grad():
        return base[0]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda m: _leaf(m).add_(1),
    "leaf by index": lambda m: _put(_leaf(m), 0, 1.0),
    "view of a leaf": lambda m: _leaf(m)[0].fill_(1),
    "view of a view of a leaf": lambda m: _leaf(m).t()[0].view(-1).zero_(),
    "row of an iteration": lambda m: _rows(m, _leaf(m) * 1),
    "chunk": lambda m: (_leaf(m) * 1).chunk(2)[0].add_(1),
    "unbind": lambda m: (_leaf(m) * 1).unbind()[0].add_(1),
    "view of no_grad": lambda m: _unseen(m).add_(1),
    "expanded add": lambda m: m.zeros(3).expand(2, 3).add_(1),
    "expanded copy": lambda m: m.zeros(3).expand(2, 3).copy_(m.ones(2, 3)),
    "expanded random": lambda m: m.zeros(3).expand(2, 3).uniform_(),
    "float into int": lambda m: m.zeros(3, dtype=m.int64).add_(1.5),
    "shape": lambda m: m.zeros(3).add_(m.zeros(2, 3)),
    "shape of a copy": lambda m: m.zeros(3).copy_(m.zeros(2, 3)),
    "detach_ of a view": lambda m: (_leaf(m) * 1)[0].detach_(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_pytorch_refuses_are_refused_with_its_type_of_error(pool: Any, name: str) -> None:
    for m in (torch, gt):
        with pytest.raises(RuntimeError):
            REFUSED[name](m)


def test_versions_count_writes_through_any_alias(pool: Any) -> None:
    def counts(m: Any) -> list[int]:
        x = m.zeros(4, 4)
        view = x.view(-1)
        view.add_(1)
        x[0] = 2
        x.detach().zero_()
        return [x._version, view._version, x.t()._version]

    assert counts(gt) == counts(torch) == [3, 3, 3]


def test_a_view_knows_its_base_and_how_its_elements_lie(pool: Any) -> None:
    for m in (gt, torch):
        x = m.zeros(4, 6)
        v = x[1:].t()
        assert v._base is x and x._base is None and v._is_view() and not x._is_view()
        assert v.stride() == (1, 6) and not v.is_contiguous() and x.is_contiguous() and x.contiguous() is x
        assert x[1:].view(3, 2, 3).stride() == (6, 3, 1) and x.expand(2, 4, 6).stride() == (0, 6, 1)


def test_gradients_of_two_leaves_are_written_apart(pool: Any) -> None:
    for m in (gt, torch):
        a, b = m.ones(3, requires_grad=True), m.ones(3, requires_grad=True)
        (a + b).sum().backward()
        a.grad.mul_(2)
        a.grad[0] = 7
        assert a.grad.tolist() == [7, 2, 2] and b.grad.tolist() == [1, 1, 1]


def test_gradients_are_zeroed_in_place(pool: Any) -> None:
    for m in (gt, torch):
        w = m.ones(3, requires_grad=True)
        (w * 2).sum().backward()
        held = w.grad
        m.optim.SGD([w], lr=0.1).zero_grad(set_to_none=False)
        assert w.grad is held and held.tolist() == [0, 0, 0]


def test_views_of_a_parameter_follow_the_optimizer(pool: Any) -> None:
    for m in (gt, torch):
        w = m.ones(2, 2, requires_grad=True)
        flat, copy = w.detach().view(-1), w.detach().clone()
        (w * 2).sum().backward()
        m.optim.SGD([w], lr=0.5).step()
        assert flat.tolist() == [0, 0, 0, 0] and copy.tolist() == [[1, 1], [1, 1]]


def test_a_detached_loss_does_not_hold_the_tape(pool: Any) -> None:
    import weakref

    w = gt.ones(3, requires_grad=True)
    loss = (w * 2).sum()
    node = weakref.ref(loss.node)
    held = [loss.detach(), loss.data]
    del loss
    assert node() is None and held[0].item() == 6


def test_views_cost_no_instruction_where_nothing_is_written(pool: Any) -> None:
    x = gt.zeros(4, 4)
    session = x.handle.session
    session.flush()
    v = x[1:].t()
    (v + v, v * 2, x + 1)
    assert len([i for i in session.code if i[0] > 0]) == 5


@pytest.mark.default("GT_TRACE")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_function_writes_through_views_and_into_its_arguments(compiled: bool) -> None:
    with cluster():
        state = gt.zeros(4, 3)
        seen = state.view(-1)

        def step(cache: gt.Tensor, k: gt.Tensor) -> gt.Tensor:
            cache[:, :2].copy_(k * 2)
            cache[:, 2:].add_(1)
            state[1] += k.sum()
            state.t()[0].mul_(0.5)
            return (cache * 3 + state.sum()).relu().sum()

        run = gt.compile(step) if compiled else step
        caches = [gt.zeros(2, 3), gt.zeros(2, 3)]
        found = []
        for i in range(8):
            cache = caches[i % 2]
            found.append(run(cache, gt.full((2, 2), float(i))).item())
        found += [c.tolist() for c in caches] + [seen.tolist(), state.tolist()]
        if compiled:
            assert not run.why and run.replays
            assert found == _plain[0]
        else:
            _plain.append(found)


_plain: list[Any] = []


@pytest.mark.default("GT_TRACE")
def test_a_captured_function_that_returns_or_writes_views_of_outer_values_is_not_replayed() -> None:
    with cluster():
        x = gt.zeros(4, 3)

        def view(y: gt.Tensor) -> gt.Tensor:
            x.add_(y * 2 + 1 - y.sum() * 3)
            return x[0]

        def write(y: gt.Tensor) -> None:
            y.add_(1).mul_(2).sub_(1).div_(4).add_((x * 2).sum())

        run, other = gt.compile(view), gt.compile(write)
        for _ in range(4):
            first = run(gt.ones(4, 3))
            other(x[1])
        first.fill_(5)
        assert x[0].tolist() == [5, 5, 5]
        assert [*run.why.values(), *other.why.values()] == [
            "it returns a view of a tensor that outlives the call: clone() it", "it writes to an argument that is a view"
        ]  # fmt: skip


def test_without_the_part_in_c_views_follow_too() -> None:
    import subprocess
    import sys

    code = """
import gt
with gt.testing.cluster():
    x = gt.zeros(3, 3)
    y = x.view(-1)
    x[:2].fill_(5)
    y += 1
    x.t()[0] = 7
    print(x.tolist(), y.sum().item())
"""
    env = {**os.environ, "GT_NATIVE": "0"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out == "[[7.0, 6.0, 6.0], [7.0, 6.0, 6.0], [7.0, 1.0, 1.0]] 47.0\n"
