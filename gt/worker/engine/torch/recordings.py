"""One capture of a CUDA graph, and the buffers of its results, which its next replay writes over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import compress
from operator import is_
from types import MappingProxyType
from typing import Any
from weakref import ref

import torch

from gt.program.stretch import pick
from gt.spec import Spec
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.transfers import INLINE

MODE = "thread_local"  # of captures: other threads may allocate memory meanwhile


class HostRead:
    """A read of a result out of the host memory that a graph copies it to."""

    __slots__ = ("host",)

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host


class HostResult:
    """A small result that each replay copies to pinned host memory. `reads` are the recording's."""

    def __init__(self, host: torch.Tensor, reads: list[HostRead]) -> None:
        self.host, self.reads = host, reads

    def begin(self) -> HostRead:
        """A read, of memory that is valid once the device has executed the replay; `end` ends it."""
        self.reads.append(read := HostRead(self.host))
        return read

    def end(self, read: HostRead) -> None:
        if read in self.reads:
            self.reads.remove(read)


class OverwrittenResults:
    """Results of a recording that another one writes over, and a function that picks them."""

    __slots__ = ("other", "of")

    def __init__(self, other: GraphRecording, results: list[int]) -> None:
        self.other, self.of = ref(other), pick(results)


class GraphRecording:
    """Results that someone still holds when they are to be written over are copied away first, all at once and into the same
    buffers each time. `early` are results that can be read while the graph runs, and the events behind which they can.
    `captured` is the function that was recorded: the graph reads its constants by their addresses. `hosts` has, by result, the
    host memory that the graph copies it to."""

    def __init__(
        self, graph: Any, results: list[torch.Tensor], early: Sequence[tuple[torch.Tensor | None, Any]] = (),
        captured: Any = None, hosts: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.graph, self.results, self.captured = graph, results, captured
        self.reads: list[HostRead] = []  # not answered yet
        self.events = [event for _, event in early]  # all that the graph records: they must live as long as it does
        self.lent: Sequence[Any] = [None] * len(results)  # the tensor that lies in each buffer
        self.unreferenced = True  # whether nobody holds a result of its last replay any more
        self.overlaps: dict[int, OverwrittenResults] = {}  # by the identity of another recording
        self.copies: dict[int, torch.Tensor] = {}  # by result that was held, where it was copied to,
        self.copied: dict[int, Any] = {}  # and the tensor that lies there
        for buffer in results:
            buffer.lent = True  # type: ignore[attr-defined]
        for made, event in early:  # one that was copied to another buffer is none of the results
            if made is not None:
                made.done = event  # type: ignore[attr-defined]
        for j, host in hosts.items():
            results[j].host = HostResult(host, self.reads)  # type: ignore[attr-defined]

    def held(self, table: dict[Any, Any], dying: Collection[int]) -> list[int]:
        """Results of its last replay that are in the table, and do not end with the next."""
        lent, there = self.lent, list(map(is_, map(table.get, self.lent), self.results))
        return [j for j in compress(range(len(there)), there) if lent[j] not in dying] if True in there else []

    def overwritten(self, other: GraphRecording, inputs: Iterable[torch.Tensor]) -> OverwrittenResults:
        """Results of another recording in buffers which a replay of this one writes: its results, and the `inputs` that
        end with a call. Found once: it is asked for before each replay."""
        found = self.overlaps.get(id(other))
        if found is None or found.other() is not other:
            written = {id(buffer) for buffer in (*self.results, *inputs)}
            found = OverwrittenResults(other, [j for j, buffer in enumerate(other.results) if id(buffer) in written])
            self.overlaps[id(other)] = found
        return found

    def copy_away(self, table: dict[Any, Any], held: Sequence[int]) -> None:
        again = []
        for j in held:
            buffer = self.copies.get(j)
            if buffer is None or table.get(self.copied[j]) is buffer:  # the holder of the buffer keeps it
                if buffer is not None:
                    buffer.lent = False
                self.copies[j] = lent(self.results[j], torch.preserve_format)
            else:
                again.append(j)
            self.copied[j] = self.lent[j]
        copy([self.results[j] for j in again], [self.copies[j] for j in again])
        for j in held:
            table[self.lent[j]] = self.copies[j]

    def clone_lent(
        self, table: dict[Any, Any], arrays: list[torch.Tensor], staying: Iterable[torch.Tensor] = ()
    ) -> dict[int, Any]:  # fmt: skip
        """Give everyone who holds a result a copy, also in `arrays`, as there will be no next replay; except of results in
        `staying` buffers, which the graph goes on using. Returns these results: the tensor that lies in each."""
        stay, left = set(map(id, staying)), {}
        for j, buffer in enumerate(self.results):
            if table.get(self.lent[j]) is not buffer:
                continue
            if id(buffer) in stay:
                left[j] = self.lent[j]
                continue
            table[self.lent[j]] = kept = buffer.clone()
            arrays[:] = [kept if a is buffer else a for a in arrays]
        self.give_up()
        return left

    def keep_reads(self, sync: Callable[[], None]) -> None:
        """Copy values that are still to be read, as the next replay writes over them; `sync` waits for the device."""
        sync()
        for read in self.reads:
            read.host = read.host.clone()
        self.reads.clear()

    def give_up(self) -> None:
        """Its buffers are tensors like any others from now on."""
        for buffer in (*self.results, *self.copies.values()):
            buffer.lent, buffer.done, buffer.host, buffer.maker = False, None, None, None  # type: ignore[attr-defined]

    def buffers(self) -> Iterable[torch.Tensor]:
        return (*self.results, *self.copies.values())


def capture(graph: Any, stream: Any, quiet: bool) -> AbstractContextManager[None]:
    """Capture the kernels of a stream. PyTorch's context first waits for all of the device's work and releases cached
    memory, as a graph may need much: a `quiet` capture stops nobody."""
    return _quiet_capture(graph, stream) if quiet else torch.cuda.graph(graph, stream=stream, capture_error_mode=MODE)


@contextmanager
def _quiet_capture(graph: Any, stream: Any) -> Iterator[None]:
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode=MODE)
        try:
            yield
        finally:
            graph.capture_end()


def pinned(specs: Sequence[Spec]) -> dict[int, torch.Tensor]:
    """Pinned memory for the small ones of some results, by result."""
    small = [(j, spec) for j, spec in enumerate(specs) if 0 < spec.nbytes <= INLINE]
    return {j: torch.empty(spec.shape, dtype=TORCH[spec.dtype], pin_memory=True) for j, spec in small}


def copied_out(
    results: Sequence[torch.Tensor], hosts: Mapping[int, torch.Tensor], inputs: Collection[torch.Tensor]
) -> dict[int, torch.Tensor]:  # fmt: skip
    """Copy results to host memory. Returns that of those copied: one in the buffer of an input is in that of all recordings.
    A kernel writes them there, as a copy by another engine of the device begins later."""
    own = {j: host for j, host in hosts.items() if all(results[j] is not a for a in inputs)}
    plain = [j for j in own if results[j].is_cuda and results[j].is_contiguous() and not _pending(results[j])]
    if plain:
        torch._foreach_copy_([_mapped(own[j], results[j].device) for j in plain], [_bytes(results[j]) for j in plain])
    for j in own.keys() - plain:
        own[j].copy_(results[j], non_blocking=True)
    return own


class _HostBytes:
    """The bytes of pinned memory at their address for the device, which is the same."""

    def __init__(self, host: torch.Tensor) -> None:
        at, self.host = (host.data_ptr(), False), host
        self.__cuda_array_interface__ = {"shape": (host.nbytes,), "typestr": "|u1", "data": at, "version": 3}


def _mapped(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The bytes of pinned memory as a tensor of the device."""
    return torch.as_tensor(_HostBytes(host), device=device)


def _pending(a: torch.Tensor) -> bool:
    """Whether its bytes are of its conjugate or its negative."""
    return a.is_conj() or a.is_neg()


def _bytes(a: torch.Tensor) -> torch.Tensor:
    return a.reshape(-1).view(torch.uint8)


def copy(sources: Collection[torch.Tensor], targets: Collection[torch.Tensor]) -> None:
    """One kernel for all of a dtype, but for those laid out otherwise: PyTorch starts one for each of a mixed list."""
    alike: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for a, b in zip(sources, targets):
        if a.dtype is not b.dtype or a.stride() != b.stride():
            b.copy_(a)
            continue
        same = alike.setdefault(a.dtype, ([], []))
        same[0].append(b)
        same[1].append(a)
    for into, of in alike.values():
        torch._foreach_copy_(into, of)


def lent(a: torch.Tensor, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """A buffer of a graph with this value."""
    made = a.clone(memory_format=layout)
    made.lent = True  # type: ignore[attr-defined]
    return made
