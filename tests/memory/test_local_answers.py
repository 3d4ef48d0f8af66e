"""Small questions answered in the client: the bits that the worker computes, nothing lost, nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client import known_values, local_answers, local_question
from gt.client.local_answers import LocalAnswers
from gt.errors import RemoteError
from gt.small import NATIVE
from gt.testing import Cluster, cluster
from tests.memory.policies import Policy, array

pytestmark = [
    pytest.mark.default("GT_LOCAL_ANSWERS", "GT_AUTO_COMPILE"),  # a test of its effect
    pytest.mark.skipif(NATIVE is None, reason="without the parts in C no question is answered in the client"),
]


def local(c: Cluster) -> LocalAnswers:
    return c.sessions[0].local


def table(c: Cluster) -> Any:
    return next(iter(c.workers[0].spaces.values())).table


def bits(t: gt.Tensor) -> bytes:
    """The bits of its elements; which sign a nan has depends on the kernel."""
    found = t.numpy()
    return np.where(np.isnan(found), np.float32(np.nan), found).tobytes() if found.dtype == np.float32 else found.tobytes()


def test_an_agent_asks_its_policy_without_a_message() -> None:
    found: dict[bool, Any] = {}
    for on in (False, True):
        with cluster(1, "pytorch", local=on) as c, gt.no_grad():
            policy, rng = Policy(), np.random.default_rng(0)
            steps = []
            for i in range(200):
                if i == 10:
                    before = c.sessions[0].serial
                logits, value = policy(array(rng, 1, 4))
                steps.append((logits.argmax(-1).item(), value.numpy().tobytes()))
            found[on] = steps
            counts = local(c).counts
            assert (c.sessions[0].serial == before) == on
            assert counts["answers"] > 150 if on else not counts
            del logits, value
            c.settle()
            assert len(table(c)) == len(list(policy.body.parameters())) + 4
            assert not on or not counts["questions_sent"] and counts["questions_dropped"] == counts["answers"]
            assert not local(c).held.questions and not local(c).held.bytes
    assert found[True] == found[False]


def test_a_result_that_is_kept_is_there_for_later_instructions() -> None:
    """The instructions that were held back are sent then, in their order."""
    with cluster(1, "pytorch", local=True) as c:
        w, kept = gt.full((4, 4), 0.25), []
        for i in range(20):
            y = gt.tensor(np.full((1, 4), i, "f4")) @ w
            kept.append(y)
            assert y.sum().item() == 4 * i
        assert local(c).counts["answers"] > 10 and not local(c).counts["questions_sent"]
        assert gt.cat(kept).std().item() > 0  # `std` is no step of a run
        assert local(c).counts["questions_sent"] == local(c).counts["answers"]
        local(c).values.clear()
        assert [t.sum().item() for t in kept] == [4.0 * i for i in range(20)]


def test_gradients_flow_through_questions_that_were_answered_here() -> None:
    found = {}
    for on in (False, True):
        with cluster(1, "pytorch", local=on) as c:
            policy, rng = Policy(), np.random.default_rng(3)
            optimizer = gt.optim.SGD(policy.body.parameters(), lr=0.1)
            read: list[Any] = []
            for _ in range(4):
                chosen = []
                for _ in range(30):
                    logits, _ = policy(array(rng, 1, 4))
                    action = logits.argmax(-1).item()
                    chosen.append(gt.log_softmax(logits, -1)[0, action])
                    read.append(action)
                loss = -gt.stack(chosen).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                read.append(loss.numpy().tobytes())
            found[on] = read + [p.numpy().tobytes() for p in policy.body.parameters()]
            assert (local(c).counts["answers"] > 50) == on
    assert found[True] == found[False]


def test_inputs_that_change_are_asked_for_only_while_it_pays() -> None:
    with cluster(1, "pytorch", local=True) as c:
        w, x = gt.ones(4), gt.ones(4)
        for _ in range(3):
            (x * w).sum().item()
        w = gt.linspace(0, 3, 4)  # no step of a run
        for _ in range(10):
            assert (x * w).sum().item() == 6
        asked, answers = local(c).counts["values_asked"], local(c).counts["answers"]
        assert asked <= 4 and answers >= 7
        for i in range(100):  # a question of the same kinds, with another input each time
            w = gt.full((4,), float(i))
            w.std().item()
            assert (x * w).sum().item() == 4 * i
        assert local(c).counts["values_asked"] < asked + 15


def test_numbers_that_change_are_operands() -> None:
    with cluster(1, "pytorch", local=True) as c:
        x = gt.full((3,), 2.0)
        for i in range(50):
            assert (x * (0.5 * i) - i).sum().item() == 0
            assert (x**2 + i).sum().item() == 12 + 3 * i  # the power is part of the plan
        assert local(c).counts["answers"] > 80
        assert [len(q.plans) for q in local(c).known.values() if q is not None] == [1, 1]


def test_a_plan_for_each_place_that_is_read_but_not_for_many() -> None:
    with cluster(1, "pytorch", local=True) as c:
        x = gt.tensor(np.arange(30, dtype="f4"))
        for i in range(60):
            assert (x * 2)[i % 30].item() == 2 * (i % 30)
        (question,) = [q for q in local(c).known.values() if q is not None]
        assert len(question.plans) == local_question.VARIANTS and local(c).counts["answers"] > 10


def test_zeros_of_either_sign_differ() -> None:
    with cluster(1, "pytorch", local=True) as c:
        x = gt.full((2,), 2.0)
        for i in range(20):
            zero = -0.0 if i % 3 == 0 else 0.0
            assert np.signbit((x**2 * zero).numpy()).all() == (i % 3 == 0)
        assert local(c).counts["answers"] > 10


def test_an_index_that_is_out_of_range_raises_on_its_line() -> None:
    with cluster(1, "pytorch", local=True) as c:
        there = gt.tensor(np.arange(10, dtype="f4").reshape(5, 2))
        for i in range(20):
            picked = gt.nn.functional.embedding(gt.tensor(np.eye(10, dtype="f4")[i % 5]).argmax(), there)
            assert picked.sum().item() == 4 * (i % 5) + 1
        assert local(c).counts["answers"] > 10
        with pytest.raises(RemoteError, match="the line that fails"):
            gt.nn.functional.embedding(gt.tensor(np.eye(10, dtype="f4")[9]).argmax(), there).sum().item()  # the line that fails
        assert there[1].sum().item() == 5


def test_a_state_that_goes_on_is_sent_from_time_to_time() -> None:
    found = {}
    for on in (False, True):
        with cluster(1, "pytorch", local=on) as c:
            h, w, read = gt.zeros(4), gt.full((4,), 0.5), []
            for i in range(5 * local_answers.HELD):
                h = (h * 0.9 + w * i).tanh()
                read.append(h.sum().item())
            found[on] = read
            if on:
                assert local(c).counts["questions_sent"] >= 4 * local_answers.HELD
                assert len(local(c).held.questions) <= local_answers.HELD
            c.settle()
            assert len(table(c)) == 2
            local(c).values.clear()
            assert h.sum().item() == read[-1]
    assert found[True] == found[False]


def test_memory_of_workers_is_freed_when_python_pauses() -> None:
    with cluster(1, "pytorch", local=True) as c:
        session, w, there = c.sessions[0], gt.full((4,), 0.5), [gt.ones(64, 64) for _ in range(8)]
        c.settle()
        for _ in range(8):
            there.pop()  # freed with the question
            assert (w + 1).sum().item() == 6
        assert local(c).counts["answers"] >= 5 and local(c).held.frees and session.buffered()
        assert len(table(c)) > 4
        for _ in range(5):
            session.paused()
        c.hub.deliver()
        assert len(table(c)) == 1 and not session.buffered()


def test_everything_is_sent_before_a_question_to_the_dispatcher() -> None:
    with cluster(1, "pytorch", local=True) as c:
        w = gt.full((4,), 0.5)
        for _ in range(10):
            y = w * 2
            y.sum().item()
        assert local(c).held.questions
        c.sessions[0].ask("stats")
        assert not local(c).held.questions and len(table(c)) == 2


def test_values_whose_tensors_are_gone_are_forgotten() -> None:
    with cluster(1, "pytorch", local=True) as c, gt.no_grad():
        policy, rng = Policy(), np.random.default_rng(0)
        for _ in range(100):
            policy(array(rng, 1, 4))[0].argmax(-1).item()
        known = len(local(c).values.of), local(c).values.nbytes
        for _ in range(100):
            policy(array(rng, 1, 4))[0].argmax(-1).item()
        assert local(c).counts["answers"] > 150
        assert (len(local(c).values.of), local(c).values.nbytes) == known


def test_known_values_stay_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_values, "BYTES", 100 * (known_values.ENTRY + 4))
    known = known_values.KnownValues()
    for i in range(1000):
        known.keep([(i, b"1234")])
        assert known.nbytes == len(known.of) * (known_values.ENTRY + 4) <= known_values.BYTES
        assert known.get(i) == b"1234"
    known.keep([(1000, bytes(known_values.BYTES))])
    assert not known.of and not known.nbytes
    known.keep([(1001, b"1"), (1001, b"1")])
    known.drop([1001, 1002])
    assert not known.of and not known.nbytes


def test_numpy_workers_and_several_answer_by_themselves() -> None:
    for workers, engine in ((1, "numpy"), (2, "pytorch")):
        with cluster(workers, engine, local=True) as c:
            x = gt.ones(3)
            for _ in range(10):
                assert (x + 1).sum().item() == 6
            assert not local(c).counts


def test_large_questions_are_not_answered_here() -> None:
    with cluster(1, "pytorch", local=True) as c:
        x = gt.ones(300, 300)
        for _ in range(6):
            assert (x + 1).sum().item() == 180_000
        assert not local(c).counts and set(local(c).known.values()) == {None}


def test_a_signal_or_an_observer_keeps_questions_at_the_worker() -> None:
    with cluster(1, "pytorch", local=True) as c:
        x = gt.ones(3)
        with gt.debug.record():
            for _ in range(10):
                (x + 1).sum().item()
        assert not local(c).counts
        gt.register_config("s", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        for _ in range(10):
            with gt.signal.context("s"):
                y = x + 1
            y.sum().item()
        assert not local(c).counts["answers"]


def test_values_that_are_forgotten_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_values, "BYTES", 8 * (known_values.ENTRY + 8))
    with cluster(1, "pytorch", local=True) as c:
        w, kept = gt.linspace(0, 1, 4), []
        for i in range(100):
            kept.append(w * i)
            assert kept[-1].sum().item() == pytest.approx(2 * i)
        assert [t.sum().item() for t in kept] == pytest.approx([2 * i for i in range(100)])
        assert local(c).counts["answers"] > 20


def test_a_reader_changes_nothing() -> None:
    with cluster(1, "pytorch", local=True):
        x = gt.ones(3)
        for _ in range(10):
            y = x + 1
            found = y.numpy()
            found[:] = 7
            assert y.numpy().tolist() == [2, 2, 2]


# Random programs: a body of ops over small tensors, repeated with changing data, numbers and branches.

UNARY = ("exp", "tanh", "sigmoid", "relu", "neg", "abs", "square", "sqrt", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
OPS = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 9)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.sampled_from(("times", "plus", "power", "clamp", "by_turn")), st.integers(0, 9)),
    st.tuples(st.sampled_from(("softmax", "log_softmax", "sum", "mean", "max", "argmax", "norm")), st.integers(0, 9)),
    st.tuples(st.sampled_from(("product", "linear", "where", "cat", "pick", "gather")), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.sampled_from(("turned", "flat", "wide", "load", "keep", "drop", "read", "std", "row")), st.integers(0, 9)),
)  # fmt: skip


class Random:
    """A program of such ops: its reads as bytes."""

    def __init__(self, ops: list[Any], size: int) -> None:
        rng = self.rng = np.random.default_rng(7)
        self.ops, self.size, self.reads, self.turn = ops, size, list[bytes](), 0
        self.kept = [gt.tensor(array(rng, size, size)) for _ in range(3)]
        self.weight, self.bias = gt.tensor(array(rng, size, size)), gt.tensor(array(rng, size))

    def at(self, i: int) -> gt.Tensor:
        return self.here[i % len(self.here)]

    def step(self) -> None:
        self.turn += 1
        self.here = [*self.kept, self.weight]
        for name, *which in self.ops:
            made = self.apply(name, self.at(which[0]), self.at(which[-1]))
            if made is not None:
                self.here.append(made)
        self.reads.append(bits(self.here[-1]))
        del self.here[:]

    def apply(self, name: str, a: gt.Tensor, b: gt.Tensor) -> gt.Tensor | None:
        if name in UNARY or name in BINARY:
            return getattr(gt, name)(a, b) if name in BINARY else getattr(gt, name)(a)
        match name:
            case "times":
                return a * 0.37
            case "plus":
                return a + self.turn
            case "by_turn":
                return a * 2 if self.turn % 5 else a - 1
            case "power":
                return a**2
            case "clamp":
                return a.clamp(-1, 0.5)
            case "softmax" | "log_softmax":
                return getattr(gt, name)(a, -1)
            case "sum" | "mean":
                return getattr(a, name)(-1, keepdim=True).expand(self.size, self.size)
            case "max":
                return a.max(-1, keepdim=True).values + a
            case "argmax":
                self.reads.append(bits(a.argmax(-1)))
            case "norm":
                return a / (gt.linalg.vector_norm(a) + 1)
            case "product":
                return a @ b
            case "linear":
                return gt.nn.functional.linear(a, b, self.bias)
            case "where":
                return gt.where(a > b, a, b * 0.5)
            case "cat":
                return gt.cat([a, b], 0)[: self.size] if self.turn % 2 else gt.cat([a, b], 1).sum(1, keepdim=True) + b
            case "pick":
                return b[a.argmax(-1)]
            case "gather":
                return gt.gather(b, 1, a.argmax(-1, keepdim=True)) + a
            case "turned":
                return a.T
            case "flat":
                return a.reshape(-1).roll(1).reshape(self.size, self.size)
            case "wide":
                return a[None].expand(2, self.size, self.size).sum(0)
            case "load":
                return gt.tensor(array(self.rng, self.size, self.size))
            case "keep":
                self.kept[self.turn % 3] = a.tanh()
            case "drop":
                self.kept[self.turn % 3] = self.weight
            case "read":
                self.reads.append(bits(a))
            case "std":
                return a + a.std() if self.turn % 4 == 0 else a
            case "row":
                return a[self.turn % 3] + a
        return None


def played(ops: list[Any], size: int, on: bool) -> tuple[list[bytes], int]:
    with cluster(1, "pytorch", local=on) as c:
        program = Random(ops, size)
        for _ in range(16):
            program.step()
        there = [bits(t) for t in program.kept]
        local(c).values.clear()  # by the worker
        assert [bits(t) for t in program.kept] == there
        return [*program.reads, *there], local(c).counts["answers"]


answered = 0


@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, min_size=1, max_size=12), st.sampled_from((3, 17, 40)))
def test_any_program_reads_the_same_bits(ops: list[Any], size: int) -> None:
    global answered
    found, answers = played(ops, size, True)
    assert found == played(ops, size, False)[0]
    answered += answers


@pytest.fixture(scope="module", autouse=True)
def programs_were_answered_here() -> Iterator[None]:
    """The comparison of random programs means something only where some were."""
    yield
    assert not answered or answered > 300
