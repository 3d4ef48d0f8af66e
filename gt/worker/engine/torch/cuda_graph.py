"""Traces as CUDA graphs. A graph has buffers for its inputs and results. An input that ends with the call and comes back as a
result of the one before (a parameter, an optimizer's state) is updated where it lies; others are copied in only when they are
not already there. Where someone still holds results when the graph is to run again, as a loop does with its loss and gradients
until it has the next, a small graph is recorded twice, with other buffers, and its recordings run in turns; those of a large
one are copied away."""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable
from operator import is_
from typing import Any
from weakref import ref

import torch

from gt.garbage import uncollected
from gt.program.code import by_result
from gt.program.stretch import pick
from gt.worker.engine.torch import checking
from gt.worker.engine.torch.graph_chains import GraphChains
from gt.worker.engine.torch.graph_function import capturable
from gt.worker.engine.torch.graph_images import images_last, is_packed, layout
from gt.worker.engine.torch.graph_numbers import GraphNumbers, Rises
from gt.worker.engine.torch.recordings import GraphRecording, capture, copied_out, copy, pinned
from gt.worker.engine.torch.result_events import ResultEvents
from gt.worker.engine.torch.shared_buffers import (
    bind_inputs,
    buffer_of,
    copy_held_away,
    is_updated_elsewhere,
    note_updates,
    release_buffers,
    unchanged,
)  # fmt: skip

HOT = 3  # calls that are observed before a capture
TRIES = 3  # most captures after inputs turned out to vary
TWICE = 64 << 20  # most bytes of a recording's results and intermediates for a second one


class Graph:
    """`program` is the worker's Executable."""

    question = False  # whether it is a few small kernels, whose small results are copied to the host as well
    may_repeat = True  # whether a second recording may be made without a word to other workers
    shares = True  # whether it may use buffers of other graphs

    def __init__(self, program: Any, engine: Any) -> None:
        self.program, self.engine = program, engine
        engine.graphs.add(self)
        self.calls = self.captures = self.runs = self.varied = self.bound = 0
        self.kept = 0  # bytes of its memory pool that hold no results, kept for the next replay
        self.no_room = 0  # captures that failed for lack of device memory
        self.checked = 0  # number of the last capture that was compared with the straight-line function
        self.seconds = 0.0
        self.recordings: list[GraphRecording] = []
        self.next = 0  # the recording whose turn it is
        self.twice = True  # whether a second recording may be made
        self.seen: list[ref[torch.Tensor]] = []  # the arrays of the call before: to hold them would double a client's memory
        self.fixed = [True] * program.inputs  # inputs that were the same array each time
        self.varying: set[int] = set()  # inputs that were the same array for a time only
        self.sharers: set[Graph] = set()  # graphs that write some of the same buffers
        self.links: dict[int, int] = {}  # input <- result of the call before
        self.before: dict[int, int] = {}  # id -> result, of the call before
        self.function: Callable[..., tuple] | None = None  # the function to record, if one is given
        self.captured: Callable[..., tuple] | None = None  # the function, between the first run and the last capture
        self.chains = GraphChains(engine, self.may_repeat)
        self.events = ResultEvents()  # of the function, for reads of its small results
        self.numbers: GraphNumbers | None = None
        self.rises = Rises()  # of the numbers that it was called with
        self.statics: list[torch.Tensor] = []
        self.ends: Callable[[tuple], tuple] = pick(program.dies)  # the ids of the inputs that end with a call
        self.ending: set[int] = set()  # these inputs
        self.let_in = nothing  # called in the middle of a long call: executes the questions of others

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        """Run the graph. Returns whether it ran; else the straight-line function has to."""
        encoding = self.program.encoding
        ids, numbers = ins[encoding.inputs], ins[encoding.given]
        if not self.recordings:
            self._watch(table, ids, ins[encoding.results])
            self.rises.see(numbers)
            self.calls += 1
            if self.calls <= HOT + self.reads_only():
                return False
            try:
                self._capture([table[i] for i in ids], numbers)
            except RuntimeError as refused:  # CUDA's error for an op that cannot be captured
                self._not_captured(refused)
                return False
        elif self.chains.are_compiled():
            try:
                self._record_bound([table[i] for i in ids], table)
            except RuntimeError as refused:
                self._not_captured(refused)
                return False
        if self.checked == self.captures:
            self._replay(table, ins, ids, numbers)
        else:
            self.checked = self.captures
            (self._check if checking.wanted() else self._replay)(table, ins, ids, numbers)
        return True

    def reads_only(self) -> bool:
        """Whether it updates nothing, as the part of a step that is called early: it is captured behind the part with the
        updates, whose buffers it reads where they lie."""
        return not any(ins.op.updates for ins in self.program.program.instructions)

    def _not_captured(self, refused: RuntimeError) -> None:
        """A capture failed. The straight-line function needs less memory: after an out-of-memory error, try again later."""
        context = refused.__context__  # the end of a failed capture raises, too, and hides the cause
        self.no_room += (no_room := any(isinstance(e, torch.OutOfMemoryError) for e in (refused, context)))
        why = str(context if no_room and context is not None else refused).splitlines()[0][:120]
        traceback.clear_frames(refused.__traceback__)  # they hold the tensors computed before it failed
        self.release()
        if not no_room or self.no_room >= TRIES:
            self.program.give_up(f"not captured: {why}")

    def _check(self, table: dict[int, Any], ins: tuple, ids: tuple, numbers: tuple) -> None:
        """Compare the first run of a capture with the straight-line function, which is used from then on if they differ."""
        want = self.program.function([table[i].clone() for i in ids], *numbers)
        recording = self._replay(table, ins, ids, numbers)
        for j, (result, right) in enumerate(zip(recording.results, want)):
            if not checking.alike(result, right):
                table.update(by_result(ins, want))
                self.program.give_up(f"captured, its result {j} differs from that of the straight-line function")
                return

    def _watch(self, table: dict[int, Any], ids: tuple, results: tuple) -> None:
        """Note which inputs are the same array as in the previous call, and which are its results. One that was a result once
        is linked: a call after a read may get it from another program, and then it is copied in."""
        arrays = [table[i] for i in ids]
        if self.seen:
            self.fixed = [f and a is seen() for f, a, seen in zip(self.fixed, arrays, self.seen)]
            self.links |= {i: self.before[id] for i, id in enumerate(ids) if id in self.before}
        self.seen = [ref(a) for a in arrays] if self.calls < HOT + self.reads_only() else []
        self.before = {id: j for j, id in enumerate(results)}

    def _capture(self, arrays: list[torch.Tensor], numbers: tuple) -> None:
        self._prepare(arrays, numbers)
        self._record()

    def _prepare(self, arrays: list[torch.Tensor], numbers: tuple) -> None:
        """Make the buffers, and run the function once: libraries initialize outside the capture."""
        began = self.engine.clock()
        self.captures += 1
        self.recordings, self.next, self.kept = [], 0, 0  # if this capture fails, there is no graph
        program = self.program
        dies = self.ending = set(program.program.dying)
        self.fixed = [
            (f or is_updated_elsewhere(self, i, a)) and i not in dies for i, (f, a) in enumerate(zip(self.fixed, arrays))
        ]
        last, times = images_last(program.program, self.engine.at), Counter(map(id, arrays))
        self.statics = [
            a if f else buffer_of(self, a, layout(i in last), i - 1 in dies and times[id(a)] == 1)
            for i, (a, f) in enumerate(zip(arrays, self.fixed), 1)
        ]
        given = self.numbers = self.numbers or GraphNumbers(numbers, self.engine.at, self.rises.each)
        given.give(numbers)
        self._make_function()
        stream = self.engine.streams.pair()[0]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), unchanged(self, arrays):
            assert self.captured is not None
            self.captured(*self.statics, *given.holes)
        torch.cuda.current_stream().wait_stream(stream)
        self.seconds += self.engine.clock() - began

    def _make_function(self) -> None:
        program, self.events = self.program, ResultEvents()
        self.captured = self.function or capturable(
            program.program, program.kinds, self.engine, stage=program.stage, events=self.events, chains=self.chains
        )

    def _record(self) -> None:
        """Capture the function that was prepared."""
        self.recordings = [self._recorded()]
        self.twice = self.may_repeat and self.kept + sum(r.nbytes for r in self.recordings[0].results) <= TWICE
        self.captured = self.captured if self.twice else None
        note_updates(self)

    def _recorded(self) -> GraphRecording:
        """One capture; nothing is executed."""
        began, graph, before, given = self.engine.clock(), torch.cuda.CUDAGraph(), 0, self.numbers
        assert self.captured is not None and given is not None
        stream, hosts = self.engine.streams.pair()[0], pinned(self.program.results) if self.question else {}
        with uncollected(), capture(graph, stream, quiet=self.question):
            before = _held(self.engine.at)  # (the start of a capture releases cached memory)
            self.events.begin()
            made = list(self.captured(*self.statics, *given.holes))
            early = self.events.end(made, self.statics)
            results = self._settle(made)
            hosts = copied_out(results, hosts, self.statics)
            given.rise()
        del made
        self.kept += max(0, _held(self.engine.at) - before)
        took = self.engine.clock() - began
        self.seconds += took
        self.program.tell(f"captured as a CUDA graph in {took * 1e3:.1f} ms", took)
        recording = GraphRecording(graph, results, early, self.captured, hosts)
        if hosts or early:
            self.engine.streams.keep_written(recording, (*hosts.values(), *recording.events))
        return recording

    def _settle(self, made: list[torch.Tensor]) -> list[torch.Tensor]:
        """The buffer of each result: that of the input which it becomes in the next call, or its own. A value that ends with
        the call may be updated where it lies."""
        owned = {s.untyped_storage().data_ptr() for s in self.statics}
        updated = {id(self.statics[i]): i for i in self.program.program.dying if i not in self.links and not self.fixed[i]}
        for j, m in enumerate(made):
            if (i := updated.pop(id(m), None)) is not None and j not in self.links.values():
                self.links[i] = j
        home = {j: self.statics[i] for i, j in self.links.items() if not self.fixed[i]}
        for j, m in enumerate(made):
            if m is not home.get(j) and (m.untyped_storage().data_ptr() in owned or not is_packed(m)):
                made[j] = m.clone()
        sources, targets = [], []
        for i, j in self.links.items():
            buffer = self.statics[i]
            if made[j] is not buffer and not self.fixed[i] and buffer.shape == made[j].shape and buffer.dtype == made[j].dtype:
                sources.append(made[j])
                targets.append(buffer)
                made[j] = buffer
        copy(sources, targets)
        return made

    def _replay(self, table: dict[int, Any], ins: tuple, ids: tuple, numbers: tuple) -> GraphRecording:
        self.let_in()
        arrays = list(map(table.__getitem__, ids))
        there = all(map(is_, arrays, self.statics))
        if not there:
            self._check_inputs(arrays, table, numbers)
        dying = set(self.ends(ins))
        recording = self._free_recording(table, dying)  # first: where there is no room, the call can be made again
        copy_held_away(self, recording, table, dying, arrays)
        deque(map(table.pop, dying), maxlen=0)
        if not there:
            self._copy_in(arrays)
        assert self.numbers is not None
        self.numbers.give(numbers)
        if recording.reads:
            recording.keep_reads(self.engine.sync)
        self.let_in()
        recording.graph.replay()
        self.numbers.advance()
        self.runs += 1
        table.update(by_result(ins, recording.results))
        recording.lent, recording.unreferenced = ins[self.program.encoding.results], False
        self.let_in()
        return recording

    def _check_inputs(self, arrays: list[torch.Tensor], table: dict[int, Any], numbers: tuple) -> None:
        """Capture again if an input has changed that was always the same array, and where inputs lie in buffers of another
        graph, which this one then reads."""
        moved = [i for i, (a, buffer) in enumerate(zip(arrays, self.statics)) if a is not buffer]
        if (varied := next((i for i in moved if self.fixed[i]), None)) is not None:
            self._vary(varied, arrays, table, numbers)
        elif self.shares and self.bound < TRIES and bind_inputs(self, moved, arrays):
            self.bound += 1
            self._record_bound(arrays, table)

    def _copy_in(self, arrays: list[torch.Tensor]) -> None:
        """Copy inputs into their buffers. One may lie in the buffer of another, which is written at the same time."""
        copies = [(a, buffer) for a, buffer in zip(arrays, self.statics) if a is not buffer]
        written = {id(buffer) for _, buffer in copies}
        copy([a.clone() if id(a) in written else a for a, _ in copies], [buffer for _, buffer in copies])

    def _free_recording(self, table: dict[int, Any], dying: set[int]) -> GraphRecording:
        """The next recording to run, whose results nobody holds. To copy them takes the worker longer than to launch the graph,
        and the device a tenth of a small graph's time."""
        recording = self.recordings[self.next]
        held = recording.held(table, dying)
        if held and self.twice:
            self.twice = False
            if (second := self._record_again()) is not None:
                recording, held, self.next = second, [], len(self.recordings)
                self.recordings.append(second)
        if held:
            recording.copy_away(table, held)
        self.next = (self.next + 1) % len(self.recordings)
        return recording

    def _record_again(self) -> GraphRecording | None:
        try:
            return self._recorded()
        except RuntimeError as refused:  # there is no room for it
            traceback.clear_frames(refused.__traceback__)
            return None
        finally:
            self.captured = None

    def _vary(self, input: int, arrays: list[torch.Tensor], table: dict[int, Any], numbers: tuple) -> None:
        """An input that was always the same array has changed: capture again, with a buffer for it."""
        while self.recordings:
            self.recordings.pop().clone_lent(table, arrays)
        release_buffers(self)
        self.fixed[input] = False
        self.varying.add(input)
        self.varied += 1
        if self.varied >= TRIES:
            self.fixed, self.varying = [False] * len(self.fixed), set(range(len(self.fixed)))
        self._capture(arrays, numbers)

    def _record_bound(self, arrays: list[torch.Tensor], table: dict[int, Any]) -> None:
        """Record again, with other buffers of inputs, or kernels that were compiled meanwhile. Libraries are initialized: the
        function need not run before."""
        left: dict[int, Any] = {}  # by result, the tensor that lies in the buffer of an input
        while self.recordings:
            left |= self.recordings.pop().clone_lent(table, arrays, self.statics)
        self.captures, self.next, self.kept = self.captures + 1, 0, 0
        self._make_function()
        self._record()
        [recording] = self.recordings
        recording.lent, recording.unreferenced = [left.get(j) for j in range(len(recording.results))], False

    def release(self) -> bool:
        """Drop the graph and its buffers, so that clients' tensors in them can be moved; after some calls it is captured again.
        Returns whether there was a graph."""
        if held := bool(self.recordings or self.statics):
            torch.cuda.synchronize(self.engine.at)  # it may be running
        self.drop()
        return held

    def drop(self) -> None:
        """The same, of a graph that is not running."""
        sharers, self.sharers = self.sharers, set()
        for recording in self.recordings:
            recording.give_up()
        release_buffers(self)
        self.recordings, self.next, self.statics, self.seen, self.before, self.captured = [], 0, [], [], {}, None
        self.fixed = [True] * self.program.inputs
        self.calls = self.kept = self.bound = 0  # a client that is moved out in every turn must not capture in every turn
        for graph in sharers:  # which would no longer know of this one's results in their buffers
            graph.release()

    def held(self) -> list[torch.Tensor]:
        """The tensors that it knows by their addresses."""
        return [
            *self.statics,
            *(buffer for recording in self.recordings for buffer in recording.buffers()),
            *(self.numbers.vectors if self.numbers is not None else ()),
        ]

    @property
    def recorded(self) -> bool:
        """Whether a call needs no memory besides the graph's own."""
        return bool(self.recordings)

    def stats(self) -> dict[str, float]:
        own = {"graph_captures": self.captures, "compiled_calls": self.runs, "compile_seconds": self.seconds}
        return own | self.chains.stats()


def nothing() -> None: ...


def _held(at: torch.device) -> int:
    """Bytes that the allocator has reserved without a tensor in them."""
    return torch.cuda.memory_reserved(at) - torch.cuda.memory_allocated(at)
