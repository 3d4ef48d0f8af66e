"""Every form of a trace on a worker gives the results of its instructions one by one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gt
from gt.client.scope import HERE
from gt.program import Hole, Instruction, run
from gt.testing import cluster
from gt.worker.engine.torch import inductor
from gt.worker.engine.torch.graph_function import capturable, where_it_lies
from gt.worker.engine.torch.side_stream import constant
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.compile import Executable
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.side_stream import off_critical_path
from gt.worker.programs.passes.split_updates import split_updates

from . import test_replay

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE")  # a test of their effect


def one_by_one(program: Executable, inputs: list, numbers: tuple) -> list:
    """The oracle: a loop over the instructions."""
    kernels = {id(r.kind): r.run for r in program.kinds.values()}
    return run(program.program, [a.clone() for a in inputs], numbers, lambda kind: kernels[id(kind)])


def step_of(body: list, optimizer: str) -> Any:
    """A training step whose forward pass is a random program."""
    gt.manual_seed(1)
    parameters = [gt.randn(4, 4, requires_grad=True) for _ in range(3)]
    make = {"adamw": lambda: gt.optim.AdamW(parameters, lr=0.01), "sgd": lambda: gt.optim.SGD(parameters, lr=0.1, momentum=0.9)}
    chosen = make[optimizer]()
    x = gt.randn(4, 4)

    def step(i: int) -> Any:
        v = [*parameters, x, x]
        for op, to, a, b in body:
            v[to] = test_replay.apply(op, v[a], v[b], 0.9 + 0.01 * i).tanh()
        loss = sum(((p * y).sum() for p, y in zip(parameters, v)), start=(x * x).sum())
        loss.backward()
        chosen.step()
        chosen.zero_grad()
        return loss.detach()

    return step


def programs(c: Any) -> list[Executable]:
    c.settle()
    return [r for space in c.workers[0].spaces.values() for _, _, r in space.kinds.values() if isinstance(r, Executable)]


@settings(max_examples=25, deadline=None)
@given(st.lists(test_replay.STEP, min_size=1, max_size=8), st.sampled_from(["adamw", "sgd"]))
def test_generated_functions_in_both_forms_give_the_results_of_the_instructions(body: list, optimizer: str) -> None:
    with cluster(1, "pytorch") as c:
        step = step_of(body, optimizer)
        for i in range(5):
            step(i).item()
        found = programs(c)
        assert found
        for program in found:
            check(program, c.workers[0].engine)


def samples_of(program: Executable) -> tuple[list, tuple]:
    """Inputs and numbers for a call."""
    torch.manual_seed(0)
    holes = {
        operand.index: spec
        for ins in program.program.instructions
        for operand, spec in zip(ins.operands, ins.kind.ins)
        if type(operand) is Hole
    }
    numbers = tuple(1 if spec is int else 0.75 for _, spec in sorted(holes.items()))
    return [torch.rand(spec.shape) for spec in program.specs if spec is not None], numbers


class WatchedSocket:
    """A second stream of which nothing may be used before it is waited for."""

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.runs = 0

    def run(self, careful: Careful, *operands: Any) -> Any:
        made = careful.kernel(*operands)
        self.runs += 1
        self.pending += made if isinstance(made, tuple) else [made]
        return made

    def join(self) -> None:
        self.pending.clear()


class Careful:
    """A kernel of the first stream. Ops that create tensors read shapes only, which are known at once."""

    def __init__(self, kernel: Any, kind: Any, watched: WatchedSocket) -> None:
        self.kernel, self.creates, self.watched = kernel, kind.row.family == "create", watched

    def __call__(self, *operands: Any) -> Any:
        given = [y for x in operands for y in (chain.from_iterable(x) if isinstance(x, list) else [x])]
        assert self.creates or not any(a is b for a in given for b in self.watched.pending)
        return self.kernel(*operands)


def on_side_stream(program: Executable, engine: Any, inputs: list, numbers: tuple) -> tuple[list, int]:
    """The results with instructions on the side stream, and the number of them."""
    plain = {n: engine.plain(r.kind) for n, r in program.kinds.items()}
    watched = WatchedSocket()
    kernels = {n: Careful(k, program.kinds[n].kind, watched) for n, k in plain.items()}
    shown = fuse_updates(program.program, lambda kind: where_it_lies(kind) is not None)
    shown = off_critical_path(fold_constants(shown, lambda ins, known: constant(plain, engine.at, ins, known)))
    table = KernelTable(kernels, fused=lambda kind: Careful(where_it_lies(kind), kind, watched))
    made = straight_line(shown, table, flat=True, side=watched)(*inputs, *numbers)
    assert not watched.pending
    return made, watched.runs


def check(program: Executable, engine: Any) -> None:
    inputs, numbers = samples_of(program)
    want = one_by_one(program, inputs, numbers)
    made = program.function([a.clone() for a in inputs], *numbers)
    for a, b in zip(made, want):
        assert torch.equal(a, b)
    for in_place in (True, False):
        function = capturable(program.program, program.kinds, engine, in_place)
        made = function(*[a.clone() for a in inputs], *[inductor._tensor(n, engine.at) for n in numbers])
        for a, b in zip(made, want):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    for a, b in zip(on_side_stream(program, engine, [a.clone() for a in inputs], numbers)[0], want):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor, "build", lambda function, samples: function)
        compiled = inductor.CompiledCode(program, engine, [a.clone() for a in inputs], numbers)
    for a, b in zip(compiled(*[a.clone() for a in inputs], *numbers), want):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def test_updates_are_gathered_where_none_is_used_before_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, "pytorch") as c:
        step = step_of([("mul", 0, 1, 2)], "adamw")
        for i in range(5):
            step(i).item()
        [program] = [p for p in programs(c) if p.ops["adam"]]
        before = program.program
        after = fuse_updates(before, lambda kind: kind.row.name == "adam")
        [fused] = [ins for ins in after.instructions if ins.parts]
        assert len(fused.parts) == 3 and fused.number == fused.parts[-1].number
        assert set(fused.frees) >= {v for part in fused.parts for v in part.values if v in before.freed}
        first = next(i for i, ins in enumerate(before.instructions) if ins.op.updates)
        used = before.instructions[first].results[0]  # let the next instruction read the first update's result
        body = list(before.instructions)
        read = next(ins for ins in body if len(ins.values) == 1 and ins.specs == body[first].made[:1])
        body.insert(first + 1, Instruction(read.number, read.kind, (999,), (used, *read.operands[1:]), (999,)))
        spoilt = before.with_instructions(body)
        assert fuse_updates(spoilt, lambda kind: kind.row.name == "adam") is spoilt


def test_gradients_of_weights_run_on_the_side_stream() -> None:
    with cluster(1, "pytorch") as c:
        gt.manual_seed(0)
        model = gt.nn.Sequential(*(gt.nn.Linear(4, 4) for _ in range(3)))
        optimizer, x = gt.optim.AdamW(model.parameters(), lr=0.01), gt.randn(4, 4)

        @gt.compile
        def step(x: Any) -> Any:
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        for _ in range(5):
            step(x)
        x.numpy()
        [program] = [p for p in programs(c) if p.ops["adam"]]
        check(program, c.workers[0].engine)
        engine = c.workers[0].engine
        inputs, numbers = samples_of(program)
        made, runs = on_side_stream(program, engine, inputs, numbers)
        assert runs == 7  # the gradients of two weights and three biases, and the loss itself, which is two ops
        kernels = {n: engine.plain(r.kind) for n, r in program.kinds.items()}
        folded = fold_constants(program.program, lambda ins, known: constant(kernels, engine.at, ins, known))
        assert len(folded.constants) == 2  # where the gradient begins


def test_compiled_code_leaves_updates_to_kernels_that_write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, "pytorch") as c:
        step = step_of([("mul", 0, 1, 2)], "adamw")
        for i in range(5):
            step(i).item()
        [program] = [p for p in programs(c) if p.ops["adam"]]
        fused = fuse_updates(program.program, lambda kind: kind.row.name == "adam")
        split = split_updates(fused)
        assert split is not None and all(ins.op.name == "adam" for ins in split.updates.instructions)
        assert not any(ins.op.updates for ins in split.first.instructions)
        made = next(ins.results[0] for ins in fused.instructions if ins.parts)
        read = next(ins for ins in fused.instructions if len(ins.operands) == len(ins.values) == 1)
        reading = fused.with_instructions([*fused.instructions, Instruction(read.number, read.kind, (999,), (made,))])
        assert split_updates(reading) is None and split_updates(program.program) is None

        monkeypatch.setattr(inductor, "build", lambda function, samples: function)
        arrays, numbers = samples_of(program)
        compiled = inductor.CompiledCode(program, c.workers[0].engine, arrays, numbers)
        held = arrays[split.given[0]]
        before = [a.data_ptr() for a in arrays]
        made = compiled.end(arrays, compiled.begin(arrays, numbers), numbers)
        assert (
            sum(m.data_ptr() in before for m in made) == 3 * len(split.updates.instructions[0].parts) - 1
        )  # parameter and state, but one
        assert held.data_ptr() not in {m.data_ptr() for m in made}


@settings(max_examples=25, deadline=None)
@given(test_replay.programs())
def test_any_program_gives_the_same_compiled_as_without(program: dict[str, Any]) -> None:
    """With the compiler left out, as a compile takes seconds: all else of the way to it and back."""

    def at_once(self: Any, arrays: list, numbers: tuple) -> None:
        self._compile([a.clone() for a in arrays], numbers)

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor, "build", lambda function, samples: function)
        patch.setattr(inductor.Inductor, "_start", at_once)
        patch.setenv("GT_AUTO_COMPILE", "1")
        for compiled in (True, False):
            with cluster(1, "pytorch") as c:
                if not compiled:
                    HERE.scope.session.tracer = None
                found[compiled] = test_replay.values_of({**program, "times": program["times"] + 8})
                stats = c.workers[0].stats()["traces"]
                assert "fallbacks" not in stats, stats
    for a, b in zip(found[True], found[False]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture
def few_objects() -> Iterator[None]:
    """A capture looks through all objects there are; those of before the test need not be looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(test_replay.STEP, min_size=2, max_size=8), st.integers(0, 4), st.integers(4, 10), st.integers(0, 7))
def test_a_compiled_function_with_state_equals_the_plain_one(
    few_objects: None, body: list, kept: int, times: int, held: int
) -> None:
    found = {}
    for compiled in (True, False):
        with cluster(1, "numpy"):
            gt.manual_seed(0)
            state = [gt.randn(4, 4) for _ in range(5)]
            holds = []

            def f(x: Any, state: list = state) -> Any:
                v = [x, *state[1:]]
                for op, to, a, b in body:
                    v[to] = test_replay.apply(op, v[a], v[b], 0.9).tanh()
                state[kept].add_(v[body[0][1]] * 0.1)
                return v[0] * 2.0

            run = gt.compile(f) if compiled else f
            values = []
            for i in range(times):
                values.append(run(gt.full((4, 4), 0.1 * i)).numpy())
                if i == held:
                    holds.append(state[kept].detach())
            found[compiled] = [*values, *(s.numpy() for s in (*state, *holds))]
    for a, b in zip(found[True], found[False]):
        np.testing.assert_array_equal(a, b)
