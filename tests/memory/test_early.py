"""Early calls, sent before Python has issued the instructions: the same numbers, all freed, wrong guesses counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client import early, tracer
from gt.testing import Cluster, cluster
from tests.nn.compare import ENGINES, numbers

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


def eager_to_guess(c: Cluster, on: bool = True) -> early.Early:
    tracer = c.sessions[0].tracer
    assert tracer is not None
    tracer.early.on, tracer.early.have_devices = on, lambda: True  # so that no call waits for a trial
    steps = c.sessions[0].steps
    assert steps is not None
    steps.on = False  # a loop that takes nothing from outside would be sent ahead instead
    return tracer.early


class Training:
    """A model with dropout, trained on fresh batches, a rate that changes, and a loss that is read."""

    def __init__(self, width: int = 4) -> None:
        gt.manual_seed(3)
        self.model = gt.nn.Sequential(*[gt.nn.Linear(width, width) for _ in range(4)], gt.nn.Dropout(0.3), gt.nn.Tanh())
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=0.01)
        self.random = np.random.default_rng(0)
        self.width = width

    def step(self, rows: int = 3) -> Any:
        x, y = (gt.tensor(self.random.standard_normal((rows, self.width)).astype("f4")) for _ in range(2))
        loss = ((self.model(x) - y) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        gt.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] *= 0.9
        return loss


@pytest.mark.parametrize("engine, workers", [("numpy", 1), ("pytorch", 1), ("pytorch", 3)])
def test_a_loop_that_reads_every_step_is_called_early_with_the_same_numbers(engine: str, workers: int) -> None:
    found = {}
    for on in (False, True):
        with cluster(workers, engine) as c:
            guesses, training = eager_to_guess(c, on), Training()
            found[on] = [training.step().item() for _ in range(20)]
            if on:
                assert guesses.counts["sent"] == guesses.counts["right"] > 4 and not guesses.counts["wrong"]
                stats = c.sessions[0].tracer.stats()  # type: ignore[union-attr]
                assert stats["early_calls_right"] == guesses.counts["right"]
    assert found[True] == found[False]


def test_the_call_goes_out_with_the_first_instruction_and_the_updates_when_they_are_written() -> None:
    with cluster(1, "numpy") as c:
        guesses, training, session = eager_to_guess(c), Training(), c.sessions[0]
        for _ in range(14):
            training.step().item()
        sent: list[tuple[int, list]] = []
        send = session.link.send

        def watch(message: Any) -> None:
            sent.append((len(session.tracer.pieces), list(getattr(message, "code", ()))))  # type: ignore[union-attr]
            send(message)

        session.link.send = watch  # type: ignore[method-assign]
        training.step().item()
        split = guesses.guesses[guesses.before].split  # type: ignore[union-attr]
        assert split.rest is not None
        first, rest = split.first.program.number, split.rest.program.number
        when = {ins[0]: held for held, code in sent for ins in code}
        assert when[first] < 10 and rest in when
        assert not any(ins.op.updates for ins in split.first.program.instructions) and not split.first.program.dying
        assert split.rest.program.instructions[0].op.updates


def test_evaluation_lengths_in_turn_and_reads_in_the_middle_give_the_same_numbers() -> None:
    def run(on: bool) -> list[float]:
        with cluster(1, "numpy") as c:
            guesses, training, found = eager_to_guess(c, on), Training(), []
            for i in range(72):
                loss = training.step(rows=3 + i % 2)
                if i % 3 == 0:
                    found.append(loss.item())
                if i % 8 == 5:
                    training.model.eval()
                    with gt.no_grad():
                        found.append(training.model(gt.ones(2, 4)).sum().item())
                    training.model.train()
            if on:
                assert guesses.counts["right"] > 3
            return found

    assert run(True) == run(False)


def test_a_wrong_guess_is_counted_freed_and_made_less_often() -> None:
    """A loop that, once it is known, does something else after the same beginning every third time."""

    def run(on: bool) -> tuple[list[float], early.Early]:
        with cluster(1, "numpy") as c:
            guesses, found, x = eager_to_guess(c, on), [], gt.ones(4)
            for i in range(90):
                y = x
                for k in range(20):
                    y = y * 1.01 + 0.001 * (k % 2)
                if i > 20 and i % 3 == 0:
                    y = y.exp().log() - 1
                for _ in range(10):
                    y = y * 0.9 + 0.1
                x = y / y.sum()
                found.append(x.sum().item() + x[0].item())
            c.settle()
            assert len(c.workers[0].spaces["c0"].table) < 8
            return found, guesses

    (with_, guesses), (without, _) = run(True), run(False)
    assert with_ == without
    assert 0 < guesses.counts["wrong"] < 12 and guesses.counts["right"] > 0


BODY = st.lists(
    st.sampled_from(["add", "mul", "twice", "tanh", "draw", "fresh", "keep", "drop", "update"]), min_size=2, max_size=6
)


def body(ops: list[str], state: dict[str, Any], scale: float) -> None:
    """A step on the values of `state`; "old" is the value before the last step."""
    x = before = state["x"]
    for op in ops:
        match op:
            case "add":
                x = x + state["w"]
            case "mul":
                x = x * scale
            case "twice":
                x = (x + x) * 0.5
            case "tanh":
                x = x.tanh()
            case "draw":
                x = x + gt.rand(3) * 0.1
            case "fresh":
                x = x + gt.tensor(state["random"].standard_normal(3).astype("f4"))
            case "keep":
                state["kept"].append(x * 2)
            case "drop":
                del state["kept"][:-1]
            case "update":
                state["w"].grad = x * 0.1
                state["optimizer"].step()
            case "old":
                x = x + state["old"] * 0.5
    state["x"], state["old"] = x / (x.abs().sum() + 1.0), before


@given(st.lists(BODY, min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=12, max_size=40), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_programs_that_branch_on_a_read_value_give_the_same_numbers(
    bodies: list[list[str]], plan: list[int], rule: int
) -> None:
    def run(on: bool) -> list[Any]:
        with cluster(1, "numpy") as c, pytest.MonkeyPatch.context() as patch:
            for name, value in (("CALLS", 1), ("RIGHT", 1), ("LEAST", 1)):
                patch.setattr(early, name, value)
            eager_to_guess(c, on)
            gt.manual_seed(1)
            w = gt.tensor(numbers(3), requires_grad=True)
            state = {
                "x": gt.ones(3),
                "w": w,
                "kept": [],
                "random": np.random.default_rng(0),
                "optimizer": gt.optim.Adam([w], 0.1),
            }
            found, read = [], 0.5
            with gt.no_grad():
                for choice in plan * 3:
                    branch = int(read * 7) + choice if rule == 3 else choice if rule == 2 else 0
                    body(bodies[branch % len(bodies)], state, 1.5 if rule == 0 else 1.0 + read)
                    if choice != 1:
                        read = abs(float(state["x"].sum().item())) % 1.0
                        found.append(read)
            return [*found, state["x"].tolist(), w.tolist(), [k.tolist() for k in state["kept"]]]

    assert run(True) == run(False)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_in_a_call_sent_early_names_the_line_that_asked(engine: str) -> None:
    with cluster(1, engine) as c:
        guesses, x = eager_to_guess(c), gt.ones(4)
        for i in range(16):
            y = gt.tensor(np.full(4, 1.0, "f4"))
            for _ in range(20):
                y = (y * x + 1) / 2
            if i == 14:
                executor = c.workers[0].executor
                run, executor.call = executor.call, None  # type: ignore[assignment, method-assign]
                with pytest.raises(gt.errors.GTError, match="test_early.py"):
                    y.sum().item()
                executor.call = run  # type: ignore[method-assign]
            else:
                assert y.sum().item() == pytest.approx(4.0)
        assert guesses.counts["sent"]


def test_nothing_is_guessed_where_many_calls_lie_between_two_reads() -> None:
    with cluster(1, "numpy") as c:
        guesses, x = eager_to_guess(c), gt.ones(4)
        for _ in range(16):
            y = x
            for _ in range(1500):
                y = y * 0.9 + 0.1
            assert y.sum().item() == pytest.approx(4.0)
        assert c.sessions[0].tracer.hits > 256  # type: ignore[union-attr]
        assert not guesses.counts["sent"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_trace_of_which_no_result_is_kept_is_not_called_early(kept: bool) -> None:
    with cluster(1, "numpy") as c:
        guesses, x = eager_to_guess(c), gt.ones(4)

        def chain() -> gt.Tensor:
            y = x
            for _ in range(40):
                y = y * 0.5
            return y

        for _ in range(20):
            read = chain() if kept else (chain(), x)[1]
            read.numpy()
            del read
        assert c.sessions[0].tracer.hits > 8  # type: ignore[union-attr]
        assert (guesses.counts["sent"] > 0) == kept


def test_dropped_traces_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "KNOWN", 4)
    with cluster(1) as c:
        guesses = eager_to_guess(c)
        for n in range(1, 20):
            for _ in range(3):
                y = gt.ones(n)
                for _ in range(6):
                    y = y * 0.5 + 1.0
                y.sum().item()
        traces = {number for key, trace in guesses.next.items() for number in (key[0], trace.number)}
        assert c.sessions[0].tracer is not None and c.sessions[0].tracer.found > 10
        assert 1 < len(guesses.next) <= 5 and traces <= {0, *c.sessions[0].tracer.programs}
