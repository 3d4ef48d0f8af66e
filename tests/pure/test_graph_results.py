"""Results of a recorded program that are referenced while it runs again, with a recording that is replayed in Python."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gt.program.code import Form
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_numbers import GraphNumbers


class Recording:
    """Doubles its input. Like a CUDA graph it knows buffers alone."""

    def __init__(self) -> None:
        encoding = Form.of_call(1, 1, 0)
        graph = self.graph = Graph(
            SimpleNamespace(inputs=1, result_count=1, encoding=encoding, dies=()), SimpleNamespace(graphs=set())
        )
        graph.fixed, graph.statics, graph.results = [False], [torch.zeros(2)], [torch.zeros(2)]
        graph.numbers, graph.graph = GraphNumbers((), torch.device("cpu")), self  # type: ignore[assignment]
        self.table: dict[int, torch.Tensor] = {}

    def replay(self) -> None:
        self.graph.results[0].copy_(self.graph.statics[0] * 2)

    def call(self, result: int, given: int) -> None:
        self.graph._replay(self.table, (9, result, given), (given,), ())


def test_results_that_are_held_keep_their_values() -> None:
    made = Recording()
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
    assert lent == [19], "only what will be written over again is the graph's"


def test_results_that_are_let_go_of_behind_the_next_call_are_copied_into_the_same_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, clones = Recording(), []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self, **how: clones.append(1) or clone(self, **how))
    for n in range(10, 20):
        made.table[1] = torch.full((2,), float(n))
        made.call(n, 1)
        if n > 10:
            assert made.table.pop(n - 1).tolist() == [2.0 * (n - 1)] * 2 and made.table[n].tolist() == [2.0 * n] * 2
    assert len(clones) == 1
    made.call(20, 1)
    assert made.table[19] is made.graph.before_last[0]
    made.graph._drop_kept()
    assert made.table[19].tolist() == [38.0, 38.0] and not made.table[19].lent, "it is a tensor like any other"  # type: ignore[attr-defined]
