"""Results of a recorded program that are referenced while it runs again, with recordings that are replayed in Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gt.program.code import Form
from gt.worker.engine.torch import cuda_graph
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_numbers import GraphNumbers
from gt.worker.engine.torch.recordings import GraphRecording, copied_out


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


class PythonGraph(Graph):
    """A graph whose captures are replayed in Python. Its function writes over inputs as fused updates do."""

    def _recorded(self) -> GraphRecording:
        assert self.captured is not None
        before = [a.clone() for a in self.statics]
        results = self._settle(list(self.captured(*self.statics)))
        for a, value in zip(self.statics, before):  # a capture executes nothing
            a.copy_(value)
        return GraphRecording(SimpleNamespace(replay=lambda: self.replay(results)), results)

    def replay(self, results: list[torch.Tensor]) -> None:
        assert self.function is not None
        made = self.function(*self.statics)
        for buffer, value in zip(results, [m if any(m is s for s in self.statics) else m.clone() for m in made]):
            if value is not buffer:
                buffer.copy_(value)


def whole(p: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = p * x
    return p.add_(x), y


def update(p: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (p.sub_(g),)


def first(p: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return p * x, p + x


def rest(p: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    twice = g + g
    return p.sub_(g), twice


def later(p: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    twice = g + g
    return p.add_(g), twice


# By name: function, the same on numbers, and the inputs that end with a call; the first result of one with such is a parameter
PARTS: dict[str, tuple[Callable[..., tuple], Callable[..., tuple], tuple[int, ...]]] = {
    "whole": (whole, lambda p, x: (p + x, p * x), (0,)),
    "update": (update, lambda p, g: (p - g,), (0,)),
    "first": (first, lambda p, x: (p * x, p + x), ()),
    "rest": (rest, lambda p, g: (p - g, g + g), (0, 1)),
    "later": (later, lambda p, g: (p + g, g + g), (0,)),
}


def full(x: float) -> torch.Tensor:
    """In double precision, as Python's numbers are."""
    return torch.full((2,), x, dtype=torch.float64)


class Family:
    """The graphs of a step: as a whole, and of its parts. Any parameter alive is the input of a call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, made in (("current_stream", lambda: stream), ("stream", lambda other: nullcontext())):
            monkeypatch.setattr(torch.cuda, name, made)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda at: None)
        engine = SimpleNamespace(
            graphs=set(), clock=float, at=torch.device("cpu"), streams=SimpleNamespace(pair=lambda: (stream, stream))
        )
        self.graphs: dict[str, PythonGraph] = {}
        for name, (function, plain, dies) in PARTS.items():
            form = Form.of_call(len(plain(0, 0)), 2, 0)
            update = SimpleNamespace(op=SimpleNamespace(updates=bool(dies)))
            program = SimpleNamespace(
                inputs=2, encoding=form, dies=tuple(map(form.at, dies)), kinds={}, tell=lambda *told: None, give_up=pytest.fail,
                program=SimpleNamespace(dying=dies, instructions=(update,)), function=None,
            )  # fmt: skip
            self.graphs[name] = PythonGraph(program, engine)
            self.graphs[name].function = function
        self.table = {1: full(3.0)}
        self.right, self.parameters, self.last = {1: 3.0}, [1], 1

    def fresh(self, x: float) -> int:
        self.last += 1
        self.table[self.last], self.right[self.last] = full(x), x
        return self.last

    def call(self, name: str, p: int, x: float) -> None:
        """A call with this parameter and a fresh number."""
        given = self.fresh(x)
        self.call_with(name, p, given)
        if 1 not in PARTS[name][2]:
            self.free(given)

    def call_with(self, name: str, p: int, given: int) -> list[int]:
        """A call with these values, by the graph or, until it is hot, without; the ids of its results."""
        graph, (_, plain, dies) = self.graphs[name], PARTS[name]
        want = plain(self.right[p], self.right[given])
        ids = [self.last + 1 + i for i in range(len(want))]
        self.last = ids[-1]
        gone = [(p, given)[i] for i in dies]
        if not graph.run(self.table, (9, *ids, p, given)):
            self.table |= {id: full(value) for id, value in zip(ids, want)}
            for id in gone:
                del self.table[id]
        if dies:
            self.parameters = [*[q for q in self.parameters if q not in gone], ids[0]]
        for id in gone:
            del self.right[id]
        self.right |= dict(zip(ids, want))
        return ids

    def free(self, id: int) -> None:
        del self.table[id], self.right[id]
        self.parameters = [p for p in self.parameters if p != id]

    def early_step(self, keep: bool = False, updates: str = "rest") -> None:
        """The part before the updates, and these, with its first result as the gradient, which ends with `rest`."""
        batch = self.fresh(0.25)
        gradient, *others = self.call_with("first", self.parameters[0], batch)
        _, twice = self.call_with(updates, self.parameters[0], gradient)
        for id in (batch, *others, twice, *(() if updates == "rest" else (gradient,))) if not keep else ():
            self.free(id)

    def check(self) -> None:
        assert {id: a.tolist() for id, a in self.table.items()} == {id: [v, v] for id, v in self.right.items()}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_graphs_that_share_buffers_keep_all_values(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    made = Family(monkeypatch)
    for name in ("whole", "whole", "first", "update") * data.draw(st.integers(0, 6)):  # until some have buffers in common
        made.call(name, made.parameters[0], 0.5)
    for _ in range(data.draw(st.integers(0, 8))):
        made.early_step(keep=data.draw(st.booleans()), updates=data.draw(st.sampled_from(["rest", "later"])))
        made.check()
    for _ in range(data.draw(st.integers(4, 20))):
        name = data.draw(st.sampled_from([*PARTS, "again", "free", "release", "early"]))
        if name == "free" and len(made.parameters) > 1:
            made.free(data.draw(st.sampled_from([id for id in made.right if made.parameters != [id]])))
        elif name == "again":  # a second parameter
            made.last += 1
            made.table[made.last], made.right[made.last] = full(5.0), 5.0
            made.parameters.append(made.last)
        elif name == "release":
            made.graphs[data.draw(st.sampled_from(list(PARTS)))].release()
        elif name == "early":
            made.early_step(keep=data.draw(st.booleans()), updates=data.draw(st.sampled_from(["rest", "later"])))
        elif name in PARTS and (others := [id for id in made.right if id not in made.parameters]) and data.draw(st.booleans()):
            made.call_with(name, data.draw(st.sampled_from(made.parameters)), data.draw(st.sampled_from(others)))
        elif name in PARTS:
            made.call(name, data.draw(st.sampled_from(made.parameters)), data.draw(st.sampled_from([0.5, 1.0, -2.0])))
        made.check()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The inputs that graphs copied into their buffers: function and number."""
    found, copy_in = list[tuple[str, int]](), Graph._copy_in

    def counted(graph: Graph, arrays: list[torch.Tensor]) -> None:
        assert graph.function is not None
        moved = [i for i, (a, buffer) in enumerate(zip(arrays, graph.statics)) if a is not buffer]
        found.extend((graph.function.__name__, i) for i in moved)
        copy_in(graph, arrays)

    monkeypatch.setattr(Graph, "_copy_in", counted)
    return found


def test_a_step_that_is_sometimes_called_early_copies_no_parameters(
    monkeypatch: pytest.MonkeyPatch, copied: list[tuple[str, int]]
) -> None:
    made = Family(monkeypatch)

    def step(*names: str) -> None:
        for name in names:
            made.call(name, made.parameters[0], 0.5)
            for id in [id for id in made.right if id not in made.parameters]:
                made.free(id)
        made.check()

    for _ in range(8):
        step("whole", "whole", "first", "update")
    copied.clear()
    for _ in range(8):
        step("whole", "whole", "first", "update")
    inputs = [i for _, i in copied]
    assert inputs.count(1) == 32 and 0 not in inputs, "the batch alone"
    assert made.table[made.parameters[0]] is made.graphs["whole"].statics[0] is made.graphs["update"].statics[0]


@pytest.mark.parametrize("updates", ["rest", "later"])
def test_updates_read_gradients_where_the_part_before_them_leaves_these(
    monkeypatch: pytest.MonkeyPatch, copied: list[tuple[str, int]], updates: str
) -> None:
    made = Family(monkeypatch)

    def step() -> None:
        made.call("whole", made.parameters[0], 0.5)
        made.early_step(updates=updates)
        made.check()

    for _ in range(8):
        step()
    copied.clear()
    for _ in range(4):
        step()
    assert (updates, 1) not in copied, "the gradient is read in place"
    assert copied.count(("first", 1)) == 4 and ("first", 0) not in copied
    rest, part = made.graphs[updates], made.graphs["first"]
    assert rest.statics[1] is part.recordings[0].results[0] and rest.bound == 1
    assert not part.recordings[0].copies, "nor is it copied away"


def test_a_value_in_a_buffer_that_another_graph_reads_is_copied_away_before_that_is_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Family(monkeypatch)
    for _ in range(8):
        made.early_step()
    held, _ = made.call_with("first", made.parameters[0], made.fresh(3.0))
    assert made.table[held] is made.graphs["rest"].statics[1]
    made.call("rest", made.parameters[0], 7.0)  # a gradient of its own goes into that buffer
    made.check()


def test_values_in_shared_buffers_outlive_the_graph_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Family(monkeypatch)
    for name in ("whole", "whole", "first", "update") * 6 + ("whole",):
        made.call(name, made.parameters[0], 0.5)
    assert made.graphs["whole"].statics[0] is made.graphs["update"].statics[0] is made.table[made.parameters[0]]
    made.graphs["whole"].release()
    made.table[900], made.right[900] = full(5.0), 5.0
    for _ in range(6):
        made.parameters.append(900)
        made.call("update", 900, 1.0)
        made.check()
        made.right[900] = made.right.pop(made.parameters[-1])
        made.table[900] = made.table.pop(made.parameters.pop())


class Constant:
    """A function with a constant, which a graph of it reads by its address."""

    def __init__(self) -> None:
        self.constant = torch.full((2,), 3.0)

    def __call__(self, p: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return p + x, p * self.constant


def test_constants_of_a_graph_live_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Family(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **how: nullcontext())
    monkeypatch.setattr(cuda_graph, "_held", lambda at: 0)
    made_by: list[ref[Constant]] = []

    def capturable(*given: object, **how: object) -> Constant:
        made_by.append(ref(constant := Constant()))
        return constant

    monkeypatch.setattr(cuda_graph, "capturable", capturable)
    program = made.graphs["whole"].program
    program.stage = None
    graph, arrays = Graph(program, made.graphs["whole"].engine), [torch.ones(2), torch.ones(2)]
    graph._capture(arrays, ())
    graph.recordings.append(graph._record_again() or pytest.fail())
    assert graph.captured is None and made_by[-1]() is not None
    table = {1: arrays[0], 2: arrays[1]}
    graph._vary(1, arrays, table, ())  # a second capture, with constants of its own
    graph.twice, graph.captured = False, None
    assert made_by[0]() is None and made_by[1]() is not None
    graph.release()
    assert made_by[1]() is None


class Question:
    """A graph that doubles its input, and copies the result to the host where a stand-in for the device executes it."""

    def __init__(self) -> None:
        self.synced = 0
        program = SimpleNamespace(inputs=1, result_count=1, encoding=Form.of_call(1, 1, 0), dies=())
        graph = self.graph = Graph(program, SimpleNamespace(graphs=set(), sync=self.sync))
        graph.fixed, graph.statics, graph.twice = [False], [torch.zeros(2)], False
        results, hosts = [torch.zeros(2)], {0: torch.zeros(2)}
        replayed = Replayed(lambda a: (a * 2, a * 2), graph.statics, [*results, hosts[0]])
        assert copied_out(results, hosts, graph.statics) == hosts
        self.recording = GraphRecording(replayed, results, hosts=hosts)
        graph.recordings, graph.numbers = [self.recording], GraphNumbers((), torch.device("cpu"))
        self.table: dict[int, torch.Tensor] = {}

    def sync(self) -> None:
        self.synced += 1

    def ask(self, result: int, value: float) -> torch.Tensor:
        self.table = {1: torch.full((2,), value)}
        self.graph._replay(self.table, (9, result, 1), (1,), ())
        return self.table[result]


def test_a_read_that_is_not_answered_when_its_graph_runs_again_keeps_its_value() -> None:
    made = Question()
    host = made.ask(10, 1.0).host  # type: ignore[attr-defined]
    first, second = host.begin(), host.begin()
    host.end(second)
    third = made.ask(11, 5.0).host.begin()  # type: ignore[attr-defined]
    assert first.host.tolist() == [2.0, 2.0] and made.synced == 1, "it was copied after the device had it"
    assert third.host.tolist() == [10.0, 10.0] and third.host is host.host
    host.end(first)
    host.end(third)
    assert made.ask(12, 7.0).tolist() == [14.0, 14.0] and made.synced == 1, "nobody was waited for"


def test_a_result_that_its_graph_gives_up_is_read_from_the_device() -> None:
    made = Question()
    result = made.ask(10, 1.0)
    read = result.host.begin()  # type: ignore[attr-defined]
    made.recording.give_up()
    assert result.host is None and read.host.tolist() == [2.0, 2.0]  # type: ignore[attr-defined]


def test_a_result_in_the_buffer_of_an_input_has_no_host_memory() -> None:
    """Both recordings have that buffer, and each would have host memory of its own for it."""
    shared, own = torch.zeros(2), torch.ones(2)
    hosts = {0: torch.zeros(2), 1: torch.zeros(2)}
    assert copied_out([shared, own], hosts, [shared]) == {1: hosts[1]} and hosts[1].tolist() == [1.0, 1.0]
