"""Results of a recorded program that are held while it runs again, with a recording that is played in Python."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gt.program.code import Form
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_numbers import GraphNumbers


class Recording:
    """Doubles its input. Like a CUDA graph it knows buffers alone, and copies the result of the call before away first."""

    def __init__(self, copies: bool) -> None:
        encoding = Form.of_call(1, 1, 0)
        graph = self.graph = Graph(
            SimpleNamespace(inputs=1, result_count=1, encoding=encoding, dies=()), SimpleNamespace(graphs=set())
        )
        graph.fixed, graph.statics, graph.results = [False], [torch.zeros(2)], [torch.zeros(2)]
        graph.before_last = {0: torch.zeros(2)} if copies else {}
        graph.numbers, graph.graph = GraphNumbers((), torch.device("cpu")), self  # type: ignore[assignment]
        self.table: dict[int, torch.Tensor] = {}

    def replay(self) -> None:
        for before in self.graph.before_last.values():
            before.copy_(self.graph.results[0])
        self.graph.results[0].copy_(self.graph.statics[0] * 2)

    def call(self, result: int, given: int) -> None:
        self.graph._replay(self.table, (9, result, given), (given,), ())


@pytest.mark.parametrize("copies", [False, True])
def test_results_that_are_held_keep_their_values(copies: bool) -> None:
    made = Recording(copies)
    made.table[1] = torch.ones(2)
    for n in range(10, 16):  # all of them are held, and each is the next one's input
        made.call(n, n - 1 if n > 10 else 1)
    assert [made.table[n].tolist() for n in range(10, 16)] == [[2.0 ** (n - 9)] * 2 for n in range(10, 16)]
    for n in range(16, 20):
        made.call(n, 1)
    made.table[1] = torch.full((2,), 3.0)
    made.call(20, 1)
    assert [made.table[n].tolist()[0] for n in range(14, 21)] == [32.0, 64.0, 2.0, 2.0, 2.0, 2.0, 6.0]


def test_a_result_that_is_let_go_of_behind_the_next_call_is_copied_by_the_graph_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, clones = Recording(True), []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self, **how: clones.append(1) or clone(self, **how))
    for n in range(10, 20):
        made.table[1] = torch.full((2,), float(n))
        made.call(n, 1)
        if n > 10:
            assert made.table.pop(n - 1).tolist() == [2.0 * (n - 1)] * 2 and made.table[n].tolist() == [2.0 * n] * 2
    assert not clones
    held = made.table[19]
    made.call(20, 1)
    assert made.table[19] is made.graph.before_last[0] and held is made.graph.results[0]
    made.graph.results, made.graph.statics = [], []
    made.graph._drop_kept()
    assert made.table[19].tolist() == [38.0, 38.0] and not made.table[19].lent, "it is a tensor like any other"  # type: ignore[attr-defined]


def test_results_that_stay_until_the_next_call_are_seen_before_the_recording() -> None:
    graph = Graph(SimpleNamespace(inputs=1, result_count=3), SimpleNamespace(graphs=set()))
    x = torch.ones(1)
    graph._watch({1: x}, (1,), (10, 11, 12))
    assert graph.staying == set()
    graph._watch({10: x, 11: x}, (10,), (20, 21, 22))  # one is an input, one is held, one is gone
    assert graph.staying == {1} and graph.links == {0: 0}
    graph._watch({20: x}, (20,), (30, 31, 32))
    assert graph.staying == set()
