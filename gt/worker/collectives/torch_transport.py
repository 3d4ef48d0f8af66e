"""The transports of collectives that need PyTorch, which takes seconds to load: a thread imports this module when the
first group is built (`process_group.py`). A worker of another engine without collectives does not load it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist

from gt import environment
from gt.ops import Kind
from gt.spec import Spec
from gt.transport.addresses import NAMES, open_port
from gt.transport.debug_output import show
from gt.worker.collectives.ops import Part, Work, begin
from gt.worker.collectives.peer_memory import COMBINE, PeerMemoryGroup
from gt.worker.collectives.torch_arrays import TorchArrays, TorchMail, as_bytes
from gt.worker.engine import Engine
from gt.worker.engine.torch.engine import TorchEngine

__all__ = [
    "Distributed", "PeerMemoryGroup", "RecordedCollectives", "TorchArrays", "TorchMail", "gpu_of", "keep_store",
    "process_group",
]  # fmt: skip

OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT
}  # fmt: skip


ABORT = 30.0  # seconds that NCCL may take to abort a group: it takes a tenth of one
POLL = 0.001  # seconds between two looks at whether the device has ended a graph
USED = threading.Event()  # NCCL was: at a regular exit of the process it may wait forever, for a lost member or a CUDA graph
# The dispatcher tells of a lost worker, and the others go on. By default PyTorch's watchdog, where it sees the loss first,
# sleeps for a minute with a lock that every collective needs, and then ends the process.
UNWATCHED = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}


class CapturedCollectives(Protocol):
    """A CUDA graph with kernels of a group in it."""

    def running(self) -> bool:
        """Whether the device has not ended it; asked without waiting for the device."""

    def drop(self) -> None: ...


def abort(group: Any, graphs: Iterable[CapturedCollectives]) -> None:
    """Abort a group of NCCL, or end this process, which could serve nobody any more. An abort ends the group's kernels, then
    waits until no CUDA graph has any, so a thread makes it, while this one drops the graphs as soon as the device has ended
    them. It makes no call before that could wait for the device: CUDA might keep the abort waiting behind it."""
    deadline = threading.Timer(ABORT, _end_process)
    deadline.daemon = True
    deadline.start()
    aborting = threading.Thread(target=_aborted, args=(group,), name="gt-group-end", daemon=True)
    aborting.start()
    pause = threading.Event()
    for graph in graphs:
        while graph.running():
            pause.wait(POLL)
        graph.drop()
    aborting.join()
    deadline.cancel()


def _aborted(group: Any) -> None:
    with contextlib.suppress(RuntimeError):  # it was aborted already
        group.abort()


def _end_process() -> None:
    show(f"gt-worker: it ends, as NCCL did not abort a group within {ABORT:g} s")
    NAMES.remove()
    os._exit(3)


def gpu_of(engine: Engine) -> str:
    """The GPU of an engine; "" if it has none."""
    if not isinstance(engine, TorchEngine) or engine.at.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(engine.at).uuid)


def patience() -> timedelta:
    """The timeout of torch.distributed: GT_COLLECTIVE_TIMEOUT. Most aborts come by message long before."""
    return timedelta(seconds=environment.COLLECTIVE_TIMEOUT.value() or 7 * 24 * 3600)


class Distributed:
    """A process group of torch.distributed."""

    def __init__(self, made: Any, way: str, waker: Callable[[], None]) -> None:
        self.made, self.way, self.waker = made, way, waker
        self.graphs: WeakSet[Any] = WeakSet()  # CUDA graphs with kernels of the group (CapturedCollectives)
        if way == "nccl":
            USED.set()

    def reduce(self, whole: torch.Tensor, how: str) -> Work:
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[how]
        return self._watch(self.made.allreduce([whole], options))

    def reduce_first(self, whole: torch.Tensor, how: str) -> Work:
        return self.reduce(whole, how)

    def gather(self, out: torch.Tensor, part: torch.Tensor) -> Work:
        return self._watch(self.made._allgather_base(out, part))

    def spread(self, tensor: torch.Tensor) -> Work:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._watch(self.made.broadcast([tensor], options))

    def swap(self, out: torch.Tensor, data: torch.Tensor, takes: list[int], sends: list[int]) -> Work:
        return self._watch(self.made.alltoall_base(out, data, takes, sends))

    def scatter(self, data: torch.Tensor, sizes: list[int], how: str) -> tuple[Work, Callable[[], torch.Tensor]]:
        n, item, mine = len(sizes), data.element_size(), sizes[self.made.rank()]
        terms = torch.empty(n, mine, dtype=data.dtype, device=data.device)
        work = self.swap(as_bytes(terms), as_bytes(data), [mine * item] * n, [size * item for size in sizes])
        return work, lambda: functools.reduce(COMBINE[how], terms.unbind())

    def end(self) -> None:
        """Abort the group. Only NCCL can at once: its kernels, those of CUDA graphs too, spin until their communicator is
        aborted, so it is aborted before this thread launches anything else. Other groups wait for operations in progress, until
        they fail or time out, in a thread of their own."""
        made, self.made = [self.made], None
        if self.way == "nccl":
            abort(made[0], list(self.graphs))
        else:
            threading.Thread(target=made.clear, name="gt-group-end", daemon=True).start()

    def _watch(self, work: Any) -> Work:
        if self.way == "recorded":
            return work
        if self.way == "nccl":
            return OnDevice(work, self.waker)
        future, waker = work.get_future(), self.waker  # completes, and calls back, before `work.is_completed()` is true
        future.add_done_callback(lambda _: waker())  # `self` here would make a cycle that the garbage collector cannot see
        return future


class RecordedCollectives:
    """Collectives inside a CUDA graph: NCCL's kernels are recorded on a stream of their own, and nothing waits on the host."""

    def __init__(self, engine: Engine, worker: int, group: Distributed) -> None:
        self.worker, self.arrays = worker, TorchArrays(engine, True, False)
        self.transport, self.graphs = Distributed(group.made, "recorded", group.waker), group.graphs

    def __call__(self, kind: Kind) -> Callable[..., Any]:
        part = Part(kind, self.worker, self.arrays, self.transport)

        def run(*operands: Any) -> Any:
            work, finish = begin(part, [o for o, spec in zip(operands, kind.ins) if isinstance(spec, Spec)], False)
            work.wait()
            made = finish()
            return made[0] if len(made) == 1 else tuple(made)

        run.collective = True  # type: ignore[attr-defined]
        return run


def process_group(
    way: str, members: tuple[int, ...], rank: int, generation: int, first: str, store: str, host: str, waker: Callable[[], None]
) -> Distributed:
    """A process group of NCCL or Gloo. `first` is the local address of the first member, `store` the address of its store."""
    here, size = way.endswith("here"), len(members)
    name = "-".join(map(str, members)) + (f".{generation}" if generation else "")
    met = _file_store(first, name, size) if here else _tcp_store(store, name)
    if way.startswith("nccl"):
        return Distributed(_nccl(met, rank, size, host), "nccl", waker)
    return Distributed(_gloo(met, rank, size, "127.0.0.1" if here else host), "gloo", waker)


def _file_store(first: str, name: str, size: int) -> Any:
    """The rendezvous store as a file in the folder of the first member's socket."""
    return dist.FileStore(f"{first.removeprefix('ipc://')}.{name}.store", size)


def _tcp_store(at: str, name: str) -> Any:
    """The rendezvous store of the first member, by TCP."""
    host, _, port = at.rpartition(":")
    return dist.PrefixStore(f"gt/{name}", dist.TCPStore(host, int(port), None, False, patience(), False))


def _gloo(store: Any, rank: int, size: int, host: str) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = patience()
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, host: str) -> Any:
    if host.startswith("127."):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # on one host, listen on the loopback interface only
    os.environ.update(UNWATCHED)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = patience()
    group = dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return group


def keep_store(host: str) -> tuple[Any, str]:
    """A TCP store for groups on this host, and its address."""
    fd, port = open_port(host)
    made = dist.TCPStore(host, port, None, True, timedelta(seconds=60), False, False, fd, True)
    return made, f"{host}:{port}"


class OnDevice:
    """Work of NCCL. Later kernels on the device's stream would be ordered without the host; the host waits, since only then is
    it known that no member's operand failed."""

    def __init__(self, work: Any, waker: Callable[[], None]) -> None:
        work.wait()  # orders this device's stream after the collective
        self.end = torch.cuda.Event(blocking=True)
        self.end.record()
        threading.Thread(target=self._watch, args=(self.end, waker), name="gt-device", daemon=True).start()

    @staticmethod
    def _watch(end: Any, waker: Callable[[], None]) -> None:
        end.synchronize()
        waker()

    def done(self) -> bool:
        return self.end.query()

    def wait(self) -> None:
        """Nothing to do: the caller has polled `done`."""
