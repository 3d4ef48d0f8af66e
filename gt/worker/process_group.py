"""How a set of workers moves bytes: by NCCL where each has a GPU of its own, out of each other's memory where all are on one
host, by Gloo elsewhere. A group is built when first needed, straight over a store that its first worker keeps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from gt.transport.messages import Peer
from gt.transport.neighbours import Inbox
from gt.worker.near import COMBINE, near

LONG = timedelta(days=7)  # a group ends by message, not by time-out
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT
}  # fmt: skip


class Reached(NamedTuple):
    """How a worker's mates reach it: where its store is, on which GPU it computes, how its memory is read; "" for none."""

    store: str
    gpu: str
    offer: str

    @classmethod
    def of(cls, mate: Peer) -> Reached:
        return cls(*mate.store.split("|", 2))

    def said(self) -> str:
        return "|".join(self)


class Work(Protocol):
    """Something begun with others."""

    def done(self) -> bool: ...
    def wait(self) -> Any:
        """Raise what went wrong, when it is done."""


class Moves(Protocol):
    """What the members of a group do together. All tensors are contiguous; but for `reduce` and `scatter`, they are bytes."""

    way: str

    def reduce(self, whole: torch.Tensor, how: str) -> Work:
        """All members' tensors combined, in place."""

    def gather(self, out: torch.Tensor, part: torch.Tensor) -> Work:
        """All members' parts, one after the other."""

    def spread(self, tensor: torch.Tensor) -> Work:
        """The first member's tensor."""

    def swap(self, out: torch.Tensor, data: torch.Tensor, takes: list[int], sends: list[int]) -> Work:
        """A part to each member, and one from each, of these sizes."""

    def scatter(self, data: torch.Tensor, sizes: list[int], how: str) -> tuple[Work, Callable[[], torch.Tensor]]:
        """All members' terms of this one's part combined, and a function that gives it when that is done. The parts, of these
        sizes, lie one after the other."""

    def end(self) -> None:
        """A member is gone."""


class Distributed:
    """A process group of torch.distributed."""

    def __init__(self, made: Any, way: str, bell: Callable[[], None]) -> None:
        self.made, self.way, self.bell = made, way, bell

    def reduce(self, whole: torch.Tensor, how: str) -> Work:
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[how]
        return self._watch(self.made.allreduce([whole], options))

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
        """It is left as it is: to end it would be to wait for the member that is gone."""

    def _watch(self, work: Any) -> Work:
        if self.way == "nccl":
            return OnDevice(work, self.bell)
        future, bell = work.get_future(), self.bell  # is done before the work says so, and its callback comes in between
        future.add_done_callback(lambda _: bell())  # naming `self` would close a cycle that no collector sees
        return future


class Group:
    """A set of workers whose way to move bytes is being found, or is found, or could not be."""

    def __init__(
        self, members: tuple[int, ...], me: int, mates: dict[int, Peer], host: str, bell: Callable[[], None],
        inbox: Inbox | None,
    ) -> None:  # fmt: skip
        self.members, self.rank, self.host, self.bell, self.inbox = members, members.index(me), host, bell, inbox
        said = [Reached.of(mates[m]) for m in members]
        self.store, gpus, self.offers = said[0].store, {r.gpu for r in said}, [r.offer for r in said]
        self.nccl = "" not in gpus and len(gpus) == len(members)  # NCCL refuses two members on one GPU
        self.made: Moves | None = None
        self.failed: Exception | None = None
        threading.Thread(target=self._build, name="gt-group", daemon=True).start()

    def _build(self) -> None:
        try:
            host, _, port = self.store.rpartition(":")
            store = dist.TCPStore(host, int(port), None, False, timedelta(seconds=60), False)
            named = dist.PrefixStore("gt/" + "-".join(map(str, self.members)), store)
            if self.nccl:
                self.made = Distributed(self._nccl(named), "nccl", self.bell)
            else:
                beside = near(self.members, self.rank, self.offers, named, self.inbox)
                self.made = beside or Distributed(self._gloo(named), "gloo", self.bell)
        except Exception as failed:  # whatever the network did, the collective that waits for it tells of it
            self.failed = failed
        self.bell()

    def _gloo(self, store: Any) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.host)]
        options._timeout = LONG
        return dist.ProcessGroupGloo(store, self.rank, len(self.members), options)

    def _nccl(self, store: Any) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = LONG
        group = dist.ProcessGroupNCCL(store, self.rank, len(self.members), options)
        group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return group


class OnDevice:
    """Work of NCCL. What follows it on the device would be in order without a word to the host; the host waits, as only then
    is it sure that nobody had nothing to give."""

    def __init__(self, work: Any, bell: Callable[[], None]) -> None:
        work.wait()  # orders this device's stream behind the collective
        self.end = torch.cuda.Event(blocking=True)
        self.end.record()
        threading.Thread(target=self._watch, args=(self.end, bell), name="gt-device", daemon=True).start()

    @staticmethod
    def _watch(end: Any, bell: Callable[[], None]) -> None:
        end.synchronize()
        bell()

    def done(self) -> bool:
        return self.end.query()

    def wait(self) -> None:
        """It has been waited for."""


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: what is only moved is moved for every dtype alike. A single element counts as contiguous
    whatever its stride, so the stride is said."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
