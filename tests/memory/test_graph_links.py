"""How a CUDA graph finds the inputs that it updates where they lie; graphs themselves are tested on GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from gt.worker.engine.torch.cuda_graph import Graph


def test_a_parameter_is_updated_where_it_lies_though_a_read_came_between_two_calls() -> None:
    """After a read the client calls a part of the step early, and the parameters come from another program once."""
    engine: Any = SimpleNamespace(graphs=set())
    graph = Graph(SimpleNamespace(inputs=3, dies=(0, 1)), engine)
    table = {id: torch.zeros(1) for id in range(100)}
    calls = [((1, 2, 3), (11, 12)), ((11, 12, 3), (21, 22)), ((81, 82, 3), (31, 32))]
    for ids, results in calls:
        graph._watch(table, ids, results)
        graph.calls += 1
    assert graph.links == {0: 0, 1: 1} and graph.fixed == [False, False, True]
