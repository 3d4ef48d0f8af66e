"""How a CUDA graph finds the inputs that it updates where they lie; graphs themselves are tested on GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from gt.program.code import Form, encoded
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.recordings import GraphRecording


def test_a_parameter_is_updated_where_it_lies_though_a_read_came_between_two_calls() -> None:
    """After a read the client calls a part of the step early, and the parameters come from another program once."""
    engine: Any = SimpleNamespace(graphs=set())
    graph = Graph(SimpleNamespace(inputs=3, dies=(0, 1), program=SimpleNamespace(instructions=())), engine)
    table = {id: torch.zeros(1) for id in range(100)}
    calls = [((1, 2, 3), (11, 12)), ((11, 12, 3), (21, 22)), ((81, 82, 3), (31, 32))]
    for ids, results in calls:
        graph._watch(table, ids, results)
        graph.calls += 1
    assert graph.links == {0: 0, 1: 1} and graph.fixed == [False, False, True]


class Numbers:
    """A graph without numbers."""

    def give(self, numbers: tuple) -> None: ...
    def advance(self) -> None: ...


def test_a_parameter_that_is_kept_keeps_its_value_when_the_other_recording_runs() -> None:
    """As of a copy of a model: the next step runs without the graph, and the one after it by the other recording, which has the
    same buffer for the parameter."""
    engine: Any = SimpleNamespace(graphs=set())
    encoding = Form.of_call(1, 1, 0)
    graph: Any = Graph(SimpleNamespace(inputs=1, dies=(encoding.at(0),), encoding=encoding), engine)
    buffer = torch.zeros(1)
    one_more = SimpleNamespace(replay=lambda: buffer.add_(1.0))
    graph.statics, graph.fixed, graph.links, graph.numbers = [buffer], [False], {0: 0}, Numbers()
    graph.recordings = [GraphRecording(one_more, [buffer]) for _ in range(2)]
    graph.twice = False
    table: dict[int, torch.Tensor] = {1: torch.full((1,), 10.0)}
    for id in (1, 2):
        graph.run(table, encoded(99, (id + 1,), (id,)))
    assert table[3].item() == 12.0 and 2 not in table
    kept, table[4] = 3, torch.full((1,), 20.0)
    graph.run(table, encoded(99, (5,), (4,)))
    assert table[5].item() == 21.0 and table[kept].item() == 12.0
    graph.run(table, encoded(99, (6,), (5,)))
    assert table[6].item() == 22.0 and table[kept].item() == 12.0
