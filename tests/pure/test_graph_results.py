"""Results of a recorded program that are referenced while it runs again, with recordings that are replayed in Python."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from gt.program.code import Form
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_numbers import GraphNumbers
from gt.worker.engine.torch.recordings import GraphRecording


class Replayed:
    """A recording of a function, which like a CUDA graph knows buffers alone."""

    def __init__(self, function: Callable[..., tuple], statics: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        self.function, self.statics, self.results = function, statics, results

    def replay(self) -> None:
        made = self.function(*self.statics)
        for buffer, value in zip(self.results, [m.clone() for m in made]):
            buffer.copy_(value)


class Doubled:
    """A graph that doubles its input, recorded once."""

    def __init__(self) -> None:
        program = SimpleNamespace(inputs=1, result_count=1, encoding=Form.of_call(1, 1, 0), dies=())
        graph = self.graph = Graph(program, SimpleNamespace(graphs=set()))
        graph.fixed, graph.statics, graph.twice = [False], [torch.zeros(2)], False
        results = [torch.zeros(2)]
        graph.recordings = [GraphRecording(Replayed(lambda a: (a * 2,), graph.statics, results), results)]
        graph.numbers = GraphNumbers((), torch.device("cpu"))
        self.table: dict[int, torch.Tensor] = {}

    def call(self, result: int, given: int) -> None:
        self.graph._replay(self.table, (9, result, given), (given,), ())


def test_results_that_are_held_keep_their_values() -> None:
    made = Doubled()
    made.table[1] = torch.ones(2)
    for n in range(10, 16):  # all of them are held, and each is the next one's input
        made.call(n, n - 1 if n > 10 else 1)
    assert [made.table[n].tolist() for n in range(10, 16)] == [[2.0 ** (n - 9)] * 2 for n in range(10, 16)]
    for n in range(16, 20):
        made.call(n, 1)
    made.table[1] = torch.full((2,), 3.0)
    made.call(20, 1)
    assert [made.table[n].tolist()[0] for n in range(14, 21)] == [32.0, 64.0, 2.0, 2.0, 2.0, 2.0, 6.0]
    lent = [n for n, a in made.table.items() if getattr(a, "lent", False)]
    assert lent == [19, 20], "only values that the graph will write over belong to it"


def test_results_that_are_let_go_of_behind_the_next_call_are_copied_into_the_same_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, clones = Doubled(), []
    [recording] = made.graph.recordings
    clone = torch.Tensor.clone
    monkeypatch.setattr(
        torch.Tensor, "clone", lambda self, **how: (how and clones.append(1)) or clone(self, **how)
    )  # of buffers
    for n in range(10, 20):
        made.table[1] = torch.full((2,), float(n))
        made.call(n, 1)
        if n > 10:
            assert made.table.pop(n - 1).tolist() == [2.0 * (n - 1)] * 2 and made.table[n].tolist() == [2.0 * n] * 2
    assert len(clones) == 1
    made.call(20, 1)
    assert made.table[19] is recording.copies[0]
    recording.give_up()
    assert made.table[19].tolist() == [38.0, 38.0] and not made.table[19].lent, "it is a tensor like any other"  # type: ignore[attr-defined]


class Loop:
    """A small graph of (a, b) -> (a + b, b - a, a * b), whose first two results are the next call's inputs, in either order."""

    def __init__(self) -> None:
        encoding = Form.of_call(3, 2, 0)
        program = SimpleNamespace(inputs=2, result_count=3, encoding=encoding, dies=encoding.tensor_positions)
        graph = self.graph = Graph(program, SimpleNamespace(graphs=set()))
        graph.fixed, graph.statics = [False, False], [torch.zeros(2), torch.zeros(2)]
        graph.numbers = GraphNumbers((), torch.device("cpu"))
        graph._recorded = self.record  # type: ignore[method-assign]
        graph.recordings = [self.record()]
        self.table = {1: torch.full((2,), 3.0), 2: torch.full((2,), 4.0)}
        self.right: dict[int, float] = {1: 3.0, 2: 4.0}

    @staticmethod
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + b, b - a, a * b

    def record(self, *_: object) -> GraphRecording:
        results = [*self.graph.statics, torch.zeros(2)]
        return GraphRecording(Replayed(self.function, self.graph.statics, results), results)

    def call(self, at: int, first: int, second: int) -> None:
        a, b = self.right.pop(first), self.right.pop(second)
        self.right |= {at: a + b, at + 1: b - a, at + 2: a * b}
        self.graph._replay(self.table, (9, at, at + 1, at + 2, first, second), (first, second), ())

    def free(self, id: int) -> None:
        del self.table[id], self.right[id]

    def check(self) -> None:
        assert {id: a.tolist() for id, a in self.table.items()} == {id: [v, v] for id, v in self.right.items()}


def test_a_small_graph_whose_results_are_held_until_the_next_is_recorded_twice_and_copies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, copied = Loop(), []
    monkeypatch.setattr(GraphRecording, "copy_away", lambda self, table, held: copied.extend(held))
    made.call(10, 1, 2)
    assert len(made.graph.recordings) == 1
    for at in range(20, 60, 10):
        made.call(at, at - 10, at - 9)
        made.check()
        made.free(at - 8)
    assert len(made.graph.recordings) == 2 and not copied
    assert made.table[50] is made.graph.statics[0], "a value updated in place is the same in both"


def test_results_that_are_held_for_longer_are_copied_away_from_either_recording() -> None:
    made = Loop()
    made.call(10, 1, 2)
    for at in range(20, 90, 10):
        made.call(at, at - 10, at - 9)
        made.check()
    assert len(made.graph.recordings) == 2
    for held in range(12, 82, 10):
        made.free(held)
    made.call(90, 80, 81)
    made.check()


def test_a_second_recording_without_room_is_done_without() -> None:
    made = Loop()

    def full(*_: object) -> GraphRecording:
        raise torch.OutOfMemoryError("CUDA out of memory")

    made.graph._recorded = full  # type: ignore[method-assign]
    made.call(10, 1, 2)
    for at in range(20, 60, 10):
        made.call(at, at - 10, at - 9)
        made.check()
        made.free(at - 8)
    assert len(made.graph.recordings) == 1


def test_inputs_that_lie_in_the_buffers_of_one_another_are_exchanged() -> None:
    made = Loop()
    made.call(10, 1, 2)
    made.call(20, 11, 10)  # in the other order than those before
    made.check()
