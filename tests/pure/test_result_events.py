"""Small results of a CUDA graph that are read while it runs: where their events lie, and the copies behind them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programs import ENGINE, NEG, SGD, X, arrays, op, program

from gt.ops import infer, row
from gt.ops.table import spec_out
from gt.program import Hole, Instruction, Program
from gt.spec import Spec, float32
from gt.transport.messages import Fetch, Run
from gt.worker.answers import Answers
from gt.worker.engine.torch import result_events
from gt.worker.engine.torch.client_streams import ClientStreams
from gt.worker.engine.torch.recordings import GraphRecording
from gt.worker.engine.torch.result_events import BEHIND, MOST, ResultEvents, read_early
from gt.worker.programs.codegen import KernelTable, straight_line

SUM = infer(row("sum"), (X,), ((0, 1), False, X.dtype.code))
COUNT = infer(row("argmax"), (X,), ((0, 1), False))


def scalar(kind: Any, value: int, of: int) -> Instruction:
    return Instruction(90 if kind is SUM else 91, kind, (value,), (of,))


def chain(first: int, value: int, length: int) -> list[Instruction]:
    """`length` negations of a value, whose results are numbered from `first` on."""
    return [op(NEG, first + i, value if i == 0 else first + i - 1) for i in range(length)]


def with_scalars(kinds: list[Any], behind: int) -> Program:
    """Scalars of the input, and so many instructions behind them; all scalars and the last value are results."""
    body = [scalar(kind, i, 1) for i, kind in enumerate(kinds, 2)]
    after = chain(2 + len(kinds), 1, behind)
    return program(1, body + after, (*range(2, 2 + len(kinds)), after[-1].results[0]))


@given(st.lists(st.sampled_from([SUM, COUNT]), min_size=1, max_size=12), st.integers(1, 3 * BEHIND))
def test_small_results_with_many_instructions_behind_them_have_events_losses_first(kinds: list[Any], behind: int) -> None:
    p = with_scalars(kinds, behind)
    early = read_early(p)
    able = [j for j in range(len(kinds)) if len(p.instructions) - j > BEHIND]
    losses = [j for j in able if kinds[j] is SUM]
    assert list(early) == (losses + [j for j in able if j not in losses])[:MOST]
    assert all(p.instructions[n].results == (p.results[j],) for j, n in early.items())


def test_a_loss_is_not_crowded_out_by_small_vectors() -> None:
    vectors = [op(NEG, i, 1) for i in range(2, 2 + 2 * MOST)]
    loss = vectors[-1].results[0] + 1
    p = program(1, [*vectors, scalar(SUM, loss, 1), *chain(loss + 1, 1, BEHIND)], tuple(range(2, loss + 1)))
    early = read_early(p)
    assert next(iter(early.items())) == (len(vectors), len(vectors)) and len(early) == MOST


def test_large_results_updates_and_values_that_end_inside_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_events, "SMALL", X.nbytes - 1)
    body = [op(NEG, 4, 1), scalar(SUM, 5, 4), op(SGD, 6, 2, 3, Hole(0), 0.0), scalar(SUM, 7, 6), *chain(8, 4, BEHIND)]
    assert read_early(program(3, body, (4, 6, 7, 8))) == {2: 3}


def test_marks_are_called_behind_their_instructions() -> None:
    p = with_scalars([SUM, COUNT], 3)
    seen: list[str] = []

    def kernel(kind: Any) -> Any:
        def run(*operands: Any) -> Any:
            seen.append(kind.row.name)
            return ENGINE.kernel(kind)(*operands)

        return run

    table = KernelTable({ins.number: kernel(ins.kind) for ins in p.instructions})
    marks = {n: lambda n=n: seen.append(f"mark {n}") for n in (0, 1)}
    straight_line(p, table, marks=marks)(arrays(1))
    assert seen == ["sum", "mark 0", "argmax", "mark 1", "neg", "neg", "neg"]


class Event:
    made: list[Event] = []

    def __init__(self, **how: Any) -> None:
        self.how, self.on = how, list[Any]()
        Event.made.append(self)

    def record(self, stream: Any) -> None:
        self.on.append(stream)

    def synchronize(self) -> None:
        self.on.append("waited for")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Event.made


def test_each_capture_has_events_of_its_own_and_a_run_without_one_has_none(events: list[Event]) -> None:
    p, graph = with_scalars([SUM, SUM], BEHIND + 2), ResultEvents()
    marks = graph.marks(p, "side")
    assert list(marks) == [0, 1]
    for mark in marks.values():
        mark()
    assert not events
    inputs, made = [torch.ones(2, 3)], [torch.ones(()), torch.ones(()), torch.ones(2, 3)]
    for capture in range(2):
        graph.begin()
        for mark in marks.values():
            mark()
        early = graph.end(made, inputs)
        assert [(a is b, event) for a, (b, event) in zip(made, early)] == [(True, events[2 * capture + i]) for i in range(2)]
    assert all(event.how == {"external": True} and event.on == [None] for event in events)
    for mark in marks.values():
        mark()
    assert len(events) == 4


def test_several_results_of_one_instruction_have_one_event(events: list[Event]) -> None:
    graph = ResultEvents()
    fused = replace(op(NEG, 2, 1), results=(2, 3), parts=(op(NEG, 2, 1), op(NEG, 3, 1)), side=True)
    marks = graph.marks(Program(40, 1, (fused, *chain(4, 1, BEHIND)), (2, 3)), "side")
    graph.begin()
    marks[0]()
    assert len(events) == 1 and events[0].on == [None], "instructions of several parts run on the first stream"
    assert [event for _, event in graph.end([torch.ones(1), torch.ones(1)], [])] == events * 2


def test_a_result_that_lies_in_an_input_is_read_behind_the_whole_graph(events: list[Event]) -> None:
    graph, inputs = ResultEvents(), [torch.ones(1)]
    marks = graph.marks(with_scalars([SUM, SUM], BEHIND + 2), None)
    graph.begin()
    for mark in marks.values():
        mark()
    other = torch.ones(())
    early = graph.end([inputs[0].reshape(()), other, torch.ones(2, 3)], inputs)
    assert early == [(None, events[0]), (other, events[1])]


def test_a_recording_holds_all_events_that_its_graph_records() -> None:
    """A graph whose event was destroyed crashes the process."""
    elsewhere, result, destroyed = torch.zeros(1), torch.zeros(1), []
    events = [Event(), Event(), Event()]
    for i, event in enumerate(events):
        weakref.finalize(event, destroyed.append, i)
    early = list(zip((elsewhere, None, result), events))
    recording = GraphRecording(SimpleNamespace(), [result], early)  # the first was copied to another buffer
    del elsewhere, early, events, event
    Event.made.clear()
    gc.collect()
    assert not destroyed
    recording.give_up()
    gc.collect()
    assert not destroyed, "it may still run"
    del recording
    gc.collect()
    assert sorted(destroyed) == [0, 1, 2]


def test_a_result_that_was_copied_away_or_given_up_has_no_event() -> None:
    result, table = torch.zeros(1), dict[int, torch.Tensor]()
    recording = GraphRecording(SimpleNamespace(), [result], [(result, "event")])
    assert result.done == "event"  # type: ignore[attr-defined]
    table[7], recording.lent = result, (7,)
    recording.copy_away(table, [0])
    assert table[7] is not result and getattr(table[7], "done", None) is None
    recording.give_up()
    assert result.done is None  # type: ignore[attr-defined]


class Stream:
    def __init__(self, name: str) -> None:
        self.name, self.waits = name, list[Any]()

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> ClientStreams:
    at, current = ClientStreams(torch.device("cuda")), list[Any]()
    pair = (Stream("main"), Stream("side"))
    monkeypatch.setattr(at, "pair", lambda: pair)
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    at.hosts = {(torch.Size([1]), torch.float32): [torch.zeros(1)]}  # pinned memory, elsewhere
    at.used = current  # type: ignore[attr-defined]
    return at


def test_memory_that_a_replay_writes_lives_until_the_device_has_come_to_its_end(
    streams: ClientStreams, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(Event, "query", lambda event: event in ended, raising=False)
    ended, freed, streams.current = list[Event](), list[int](), "a client"
    for i in range(3):
        host, result = torch.zeros(1), torch.zeros(1)
        weakref.finalize(host, freed.append, i)
        recording = GraphRecording(SimpleNamespace(), [result], hosts={0: host})
        streams.keep_written(recording, (host,))
        recording.give_up()
        del host, result, recording
        gc.collect()
        event = events[-1]
        assert event.on == [streams.pair()[0]] and freed == list(range(i)), "it may still run"
        ended.append(event)


def test_a_copy_waits_for_its_value_alone_and_the_next_calls_wait_for_the_copy(streams: ClientStreams) -> None:
    main, side = streams.pair()
    host, copied = streams.to_host_early(torch.full((1,), 7.0), "done")
    assert side.waits == ["done"] and main.waits == [copied] and copied.on == [side]
    assert streams.used == [side, main] and host.tolist() == [7.0]  # type: ignore[attr-defined]


def test_memory_and_event_of_a_read_serve_again(streams: ClientStreams, events: list[Event]) -> None:
    for value in (7.0, 8.0, 9.0):
        assert streams.read_early(torch.full((1,), value), "done").tolist() == [value]
    assert len(events) == 1 and events[0].on == [streams.pair()[1], "waited for"] * 3
    assert len(streams.hosts[torch.Size([1]), torch.float32]) == 1


def asked(streams: ClientStreams, value: torch.Tensor) -> tuple[str, Any, Any]:
    """The answer to a read of a value on a shared device: client, event, and the function that makes it."""
    streams.shared = True
    store = lambda array, spec: memoryview(array.numpy().tobytes())  # noqa: E731
    executor = SimpleNamespace(streams=streams, turn=None, engine=SimpleNamespace(store=store), name="w")
    answers = Answers(executor, SimpleNamespace())  # type: ignore[arg-type]
    values = SimpleNamespace(client="c", table={5: value}, broken=[])
    get = Fetch(1, 5, spec_out(Spec((1,), float32)), (0,), (1,))
    assert answers.of_run(values, Run("c", 1, (), [], (get,))) == []  # type: ignore[arg-type]
    [answer] = streams.answers
    return answer


def test_a_read_on_a_shared_device_is_answered_at_the_event_of_its_copy(streams: ClientStreams) -> None:
    value = torch.full((1,), 7.0)
    value.done = "done"  # type: ignore[attr-defined]
    client, event, answer = asked(streams, value)
    assert client == "c" and streams.pair()[1].waits == ["done"] and event.on == [streams.pair()[1]]
    assert answer().message.data == value.numpy().tobytes()


def test_a_result_that_its_graph_copies_to_the_host_is_answered_out_of_that(streams: ClientStreams) -> None:
    result, host = torch.zeros(1), torch.full((1,), 7.0)
    recording = GraphRecording(SimpleNamespace(), [result], hosts={0: host})
    client, event, answer = asked(streams, result)
    assert client == "c" and event.on == [streams.pair()[0]] and len(recording.reads) == 1, "behind the graph"
    assert answer().message.data == host.numpy().tobytes() and not recording.reads
