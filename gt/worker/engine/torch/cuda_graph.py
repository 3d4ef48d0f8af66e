"""Traces as CUDA graphs. A graph has buffers for its inputs and results. An input that ends with the call and comes back as a
result of the one before (a parameter, an optimizer's state) is updated where it lies; others are copied in only when they are
not already there. Where someone still holds results when the graph is to run again, as a loop does with its loss and gradients
until it has the next, a small graph is recorded twice, with other buffers, and its recordings run in turns; those of a large
one are copied away."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import is_
from typing import Any
from weakref import ref

import torch

from gt.garbage import uncollected
from gt.ops import Kind
from gt.program import Program
from gt.program.code import by_result
from gt.program.stretch import pick
from gt.worker.engine.torch import checking
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.graph_images import images_last, is_packed, layout, on_images
from gt.worker.engine.torch.graph_numbers import GraphNumbers, Rises
from gt.worker.engine.torch.kernels import GATHERED
from gt.worker.engine.torch.lists import alike, of_list
from gt.worker.engine.torch.recordings import GraphRecording, capture, copied_out, copy, pinned
from gt.worker.engine.torch.result_events import ResultEvents
from gt.worker.engine.torch.shared_buffers import buffer_of, let_go, lies_elsewhere, note_updates, spare_others, unchanged
from gt.worker.engine.torch.side_stream import SideStream, constant
from gt.worker.programs.codegen import NONE, KernelTable, straight_line
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.early_collectives import early_collectives
from gt.worker.programs.passes.fuse_lists import fuse_lists
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.side_stream import off_critical_path
from gt.worker.programs.passes.sums_of_pieces import write_pieces
from gt.worker.programs.passes.unused import without_unused

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
        self.calls = self.captures = self.runs = self.varied = 0
        self.kept = 0  # bytes of its memory pool that hold no results, kept for the next replay
        self.no_room = 0  # captures that failed for lack of device memory
        self.checked = 0  # number of the last capture that was compared with the straight-line function
        self.seconds = 0.0
        self.recordings: list[GraphRecording] = []
        self.next = 0  # the recording whose turn it is
        self.twice = True  # whether a second recording may be made
        self.seen: list[ref[torch.Tensor]] = []  # the arrays of the call before: to hold them would double a client's memory
        self.fixed = [True] * program.inputs  # inputs that were the same array each time
        self.loose: set[int] = set()  # inputs that were the same array for a time only
        self.kin: set[Graph] = set()  # graphs that write some of the same buffers
        self.links: dict[int, int] = {}  # input <- result of the call before
        self.before: dict[int, int] = {}  # id -> result, of the call before
        self.function: Callable[..., tuple] | None = None  # the function to record, if one is given
        self.captured: Callable[..., tuple] | None = None  # the function, between the first run and the last capture
        self.events = ResultEvents()  # of the function, for reads of its small results
        self.numbers: GraphNumbers | None = None
        self.rises = Rises()  # of the numbers that it was called with
        self.statics: list[torch.Tensor] = []
        self.ends: Callable[[tuple], tuple] = pick(program.dies)  # the ids of the inputs that end with a call

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
        dies = set(program.program.dying)
        self.fixed = [(f or lies_elsewhere(self, i, a)) and i not in dies for i, (f, a) in enumerate(zip(self.fixed, arrays))]
        last, times = images_last(program.program, self.engine.at), Counter(map(id, arrays))
        self.statics = [
            a if f else buffer_of(self, a, layout(i in last), i - 1 in dies and times[id(a)] == 1)
            for i, (a, f) in enumerate(zip(arrays, self.fixed), 1)
        ]
        given = self.numbers = self.numbers or GraphNumbers(numbers, self.engine.at, self.rises.each)
        given.give(numbers)
        self.events = ResultEvents()
        self.captured = self.function or capturable(
            program.program, program.kinds, self.engine, stage=program.stage, events=self.events
        )
        stream = self.engine.streams.pair()[0]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), unchanged(self, arrays):
            self.captured(*self.statics, *given.holes)
        torch.cuda.current_stream().wait_stream(stream)
        self.seconds += self.engine.clock() - began

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
        return GraphRecording(graph, results, early, self.captured, hosts)

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
        arrays = [table[i] for i in ids]
        there = all(map(is_, arrays, self.statics))
        if not there:
            self._check_fixed(arrays, table, numbers)
        dying = set(self.ends(ins))
        recording = self._free_recording(table, dying)  # first: where there is no room, the call can be made again
        spare_others(self, recording, table, dying)
        for id in dying:
            del table[id]
        if not there:
            self._copy_in(arrays)
        assert self.numbers is not None
        self.numbers.give(numbers)
        if recording.reads:
            recording.keep_reads(self.engine.sync)
        recording.graph.replay()
        self.numbers.advance()
        self.runs += 1
        table.update(by_result(ins, recording.results))
        recording.lent, recording.let_go = ins[self.program.encoding.results], False
        return recording

    def _check_fixed(self, arrays: list[torch.Tensor], table: dict[int, Any], numbers: tuple) -> None:
        """Capture again if an input has changed that was always the same array."""
        for i, (a, buffer) in enumerate(zip(arrays, self.statics)):
            if a is not buffer and self.fixed[i]:
                self._vary(i, arrays, table, numbers)
                return

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
        let_go(self)
        self.fixed[input] = False
        self.loose.add(input)
        self.varied += 1
        if self.varied >= TRIES:
            self.fixed, self.loose = [False] * len(self.fixed), set(range(len(self.fixed)))
        self._capture(arrays, numbers)

    def release(self) -> bool:
        """Drop the graph and its buffers, so that clients' tensors in them can be moved; after some calls it is captured again.
        Returns whether there was a graph."""
        if held := bool(self.recordings or self.statics):
            torch.cuda.synchronize(self.engine.at)  # it may be running
        self.drop()
        return held

    def drop(self) -> None:
        """The same, of a graph that is not running."""
        kin, self.kin = self.kin, set()
        for recording in self.recordings:
            recording.give_up()
        let_go(self)
        self.recordings, self.next, self.statics, self.seen, self.before, self.captured = [], 0, [], [], {}, None
        self.fixed = [True] * self.program.inputs
        self.calls = self.kept = 0  # a client that is moved out in every turn must not capture in every turn
        for graph in kin:  # which would no longer know of this one's results in their buffers
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
        return {"graph_captures": self.captures, "compiled_calls": self.runs, "compile_seconds": self.seconds}


def capturable(
    program: Program, kinds: dict[int, Any], engine: Any, in_place: bool = True,
    stage: Callable[[str, Program], Program] = lambda name, program: program,
    collectives: Mapping[int, Callable[..., Any]] = NONE, events: ResultEvents | None = None,
) -> Callable[..., tuple]:  # fmt: skip
    """A program as a function of tensors alone: holes are 0-d tensors. With `in_place`, updates of many parameters run as one
    fused call in place; without, all ops are in a form that a compiler can fuse. `collectives` has the kernels of those,
    `events` are recorded behind small results."""
    own = {n: ready for n, ready in kinds.items() if not ready.kind.row.collective}
    kernels = {**tensor_kernels(program, own, engine, in_place), **collectives}
    if not in_place:
        return straight_line(program, KernelTable(kernels), flat=True)
    program = stage("without unused ops", without_unused(program))
    program = stage("updates fused", fuse_updates(program, lambda kind: where_it_lies(kind) is not None))
    program = stage("constants folded", fold_constants(program, partial(constant, kernels, engine.at)))
    program = stage("pieces written", write_pieces(program))
    over = {ins.number: engine.writing(ins.kind) for ins in program.instructions if ins.in_place}
    side, marks = None, NONE
    if engine.at.type == "cuda":
        if images_last(program, engine.at):
            kernels |= {n: on_images(kernels[n]) for n, kind in program.kinds.items() if kind.row.images}
        program = stage("lists fused", fuse_lists(program, alike))
        program = stage("on two streams", off_critical_path(early_collectives(program)))
        side = SideStream(engine.streams.pair()[1], torch.cuda.Stream(engine.at) if collectives else None)
        marks = events.marks(program, side.stream) if events is not None else NONE
    return straight_line(program, KernelTable(kernels, over, of_many), flat=True, side=side, marks=marks)


def tensor_kernels(program: Program, kinds: dict[int, Any], engine: Any, in_place: bool) -> dict[int, Callable[..., Any]]:
    """Kernels by number of the kind, which take 0-d tensors for holes."""
    open_ = {part.number for ins in program.instructions for part in ins.parts or (ins,) if part.holes}
    kernels = {}
    for number, ready in kinds.items():
        kernel = kernels[number] = engine.plain(ready.kind)
        takes_tensors = in_place and getattr(getattr(kernel, "func", kernel), "takes_tensors", False)
        if number in open_ and not takes_tensors:
            kernels[number] = _cast(engine.generic(ready.kind), ready.kind)
    return kernels


def where_it_lies(kind: Kind) -> Callable[..., Any] | None:
    """A fused kernel for many updates that overwrites their operands, even if others hold them."""
    run = GATHERED.get(kind.row.name)
    return None if run is None else partial(run, **kind.settings)


def of_many(kind: Kind) -> Callable[..., Any] | None:
    """A fused kernel for updates, or for a list of instructions that are alike."""
    return where_it_lies(kind) or of_list(kind)


def _held(at: torch.device) -> int:
    """Bytes that the allocator has reserved without a tensor in them."""
    return torch.cuda.memory_reserved(at) - torch.cuda.memory_allocated(at)


def _cast(run: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    """A kernel that takes 0-d tensors as numbers, with results in the dtypes that Python numbers would give. Integers in
    floating point arithmetic are doubles, as Python's would be; integers that are offsets stay integers."""
    dtypes = tuple(TORCH[s.dtype] for s in kind.outs)
    computed = kind.row.pointwise or kind.row.updates
    widen = computed and all(t.is_floating_point for t in dtypes)
    whole = [i for i, s in enumerate(kind.ins) if s is int] if widen else []

    def kernel(*operands: Any) -> Any:
        given = list(operands)
        for i in whole:
            given[i] = given[i].double() if isinstance(given[i], torch.Tensor) else given[i]
        made = run(*given)
        if len(dtypes) == 1:
            return made.to(dtypes[0])
        return tuple(m.to(t) for m, t in zip(made, dtypes))

    return kernel
