"""Collectives over torch.distributed: Gloo on CPUs, NCCL where each worker has a GPU of its own. A process group is built for
a set of workers when first needed, straight over a store that its first worker keeps. Nothing here blocks: groups are built
in a thread of their own, collectives end in threads of theirs, and both ring `bell`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gt.errors import RemoteError, WorkerLost
from gt.ops import Kind
from gt.spec import DTYPES, Shape, Spec, bool_, int16, split
from gt.transport.messages import Mail, Peer, Piece, Spoiled, Store
from gt.worker.collectives import NO_STORE, Mailed, Wait, from_mates
from gt.worker.engine import Engine
from gt.worker.engine.torch import TORCH, TorchEngine

PATIENCE = 5.0  # seconds for the dispatcher to notice a worker that its mates have noticed
LONG = timedelta(days=7)  # a group ends by message, not by time-out
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT
}  # fmt: skip


class Group:
    """A process group that is being built, or is built, or could not be."""

    def __init__(self, members: tuple[int, ...], me: int, mates: dict[int, Peer], host: str, bell: Callable[[], None]) -> None:
        self.members, self.rank, self.host, self.bell = members, members.index(me), host, bell
        self.store = mates[members[0]].store.partition("|")[0]
        gpus = {mates[m].store.partition("|")[2] for m in members}
        self.nccl = "" not in gpus and len(gpus) == len(members)  # NCCL refuses two members on one GPU
        self.made: Any = None
        self.failed: Exception | None = None
        threading.Thread(target=self._build, name="gt-group", daemon=True).start()

    def _build(self) -> None:
        try:
            host, _, port = self.store.rpartition(":")
            store = dist.TCPStore(host, int(port), None, False, timedelta(seconds=60), False)
            named = dist.PrefixStore("gt/" + "-".join(map(str, self.members)), store)
            self.made = self._nccl(named) if self.nccl else self._gloo(named)
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


class Grouped:
    """The way of workers that have PyTorch. Sets of workers that one without it belongs to talk by mail."""

    def __init__(self, engine: Engine, host: str, bell: Callable[[], None], clock: Callable[[], float]) -> None:
        self.engine, self.host, self.bell, self.clock = engine, host, bell, clock
        self.mail = Mailed(engine)
        self.groups: dict[tuple[int, ...], Group] = {}
        self.posts: list[Mail] = []
        self.store: Any = None
        self.dead: list[Any] = []  # groups with a lost member: ending them would wait for it

    @property
    def index(self) -> int:
        return self.mail.index

    @index.setter
    def index(self, index: int) -> None:
        self.mail.index = index

    @property
    def mates(self) -> dict[int, Peer]:
        return self.mail.mates

    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        self.mail.meet(workers, lost)
        if self.store is None and len(workers) > 1:
            self.store = dist.TCPStore("0.0.0.0", 0, None, True, timedelta(seconds=60), False, use_libuv=True)
            gpu = ""
            if isinstance(self.engine, TorchEngine) and self.engine.at.type == "cuda":
                gpu = str(torch.cuda.get_device_properties(self.engine.at).uuid)
            self.posts.append(Mail("", Store(f"{self.host}:{self.store.port}|{gpu}")))
        for members in [m for m in self.groups if not set(m) <= self.mates.keys()]:
            self.dead.append(self.groups.pop(members))

    def from_mate(self, peer: str, sender: int) -> bool:
        return from_mates(peer, sender)

    def receive(self, piece: Piece, frame: Any) -> None:
        self.mail.receive(piece, frame)

    def outgoing(self) -> list[Mail]:
        posts, self.posts = self.posts, []
        return posts + self.mail.outgoing()

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> Wait:
        members = kind.settings["group"]
        if any(self.mates[m].store == NO_STORE for m in members if m in self.mates):
            return self.mail.begin(client, kind, operands, tag)
        return _Collective(self, client, kind, operands, tag)


class _Collective:
    """One collective of one worker: waits for its group, then for its work."""

    def __init__(self, talk: Grouped, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.talk, self.kind, self.tag = talk, kind, tag
        self.members: tuple[int, ...] = kind.settings["group"]
        self.specs: list[Spec] = [kind.ins[i] for i in kind.tensors]
        self.why = next((a for a in operands if a is None or hasattr(a, "error")), False)
        self.operands = operands
        self.work: Any = None
        self.finish: Callable[[], list[Any]] = list
        self.failed: Exception | None = None
        self.since = 0.0  # when it failed
        if self.why is not False:
            text = getattr(self.why, "text", "a tensor is missing")
            talk.posts.append(Mail("", Spoiled(client, tag, getattr(self.why, "error", "RemoteError"), text)))

    def ready(self) -> bool:
        if not self._alive():
            return True
        if self.failed is not None:
            return self._confirmed()
        if self.work is None:
            group = self._group()
            if group is None or (group.made is None and group.failed is None):
                return False
            try:
                if group.failed is not None:
                    raise group.failed
                self._issue(group)
            except Exception as failed:  # the network's errors are this collective's result
                self.failed = failed
                return self._confirmed()
        if self.work is not True and self.work.done() and self.failed is None:
            try:
                self.work.wait()  # it is done: this only raises what went wrong
            except RuntimeError as failed:
                self.failed = failed
                return self._confirmed()
        return self.work is True or self.work.done()

    def _confirmed(self) -> bool:
        """A connection that broke most often means a worker that is gone: the dispatcher should be the one to say so, since
        whoever is told goes on at once with those that it says are there."""
        self.since = self.since or self.talk.clock()
        return not self._alive() or self.talk.clock() - self.since > PATIENCE

    def _alive(self) -> bool:
        return set(self.members) <= self.talk.mates.keys()

    def _group(self) -> Group | None:
        """The group, begun if everything that takes is known."""
        talk = self.talk
        found = talk.groups.get(self.members)
        if found is None and all(talk.mates[m].store for m in self.members):
            found = talk.groups[self.members] = Group(self.members, talk.index, talk.mates, talk.host, talk.bell)
        return found

    def _issue(self, group: Group) -> None:
        self.group = group
        # Held by the worker's table, by `operands` and by the call that counts: nobody else computes with it.
        self.alone = len(self.operands) == 1 and sys.getrefcount(self.operands[0]) <= 3
        tensors = [self._tensor(a, s) for a, s in zip(self.operands, self.specs)]
        self.operands = []
        work, self.finish = getattr(self, f"_{self.kind.row.name}")(group.made, *tensors)
        if group.nccl:
            work.wait()  # orders this device's stream behind the collective; the host goes on
            self.work = True
        else:  # the future is done before the work says so, and its callback comes in between
            self.work, bell = work.get_future(), self.talk.bell
            self.work.add_done_callback(lambda _: bell())  # naming `self` would close a cycle that no collector sees

    def result(self) -> list[Any]:
        if not self._alive():
            lost = self.talk.mail.lost or "one of them went away"
            raise WorkerLost(f"{self.kind.row.name} with workers {list(self.members)} cannot end: {lost}")
        if self.failed is not None:
            raise WorkerLost(f"{self.kind.row.name} with workers {list(self.members)} failed: {self.failed}")
        if self.why is not False:
            raise RemoteError(getattr(self.why, "text", "a tensor is missing"))
        finish, self.finish, self.work = self.finish, list, True  # what was moved is its tensors' alone from here on
        return finish()

    # Arrays of engines and tensors that torch.distributed moves

    def _tensor(self, array: Any, spec: Spec) -> torch.Tensor:
        """What is sent, contiguous. In place of what could not be made go nans or zeros, since the others count on it."""
        if array is None or hasattr(array, "error"):
            fill = float("nan") if spec.dtype.rank == 2 else 0
            return torch.full(spec.shape, fill, dtype=TORCH[spec.dtype], device=self._device())
        if not isinstance(array, torch.Tensor):
            data = self.talk.engine.store(array, spec)
            flat = torch.frombuffer(bytearray(data), dtype=TORCH[spec.dtype]) if spec.numel else torch.empty(0)
            return flat.to(TORCH[spec.dtype]).reshape(spec.shape)
        return array.detach().to(self._device()).contiguous()

    def _device(self) -> torch.device:
        engine = self.talk.engine
        return engine.at if self.group.nccl and isinstance(engine, TorchEngine) else torch.device("cpu")

    def _array(self, tensor: torch.Tensor, spec: Spec) -> Any:
        engine = self.talk.engine
        if isinstance(engine, TorchEngine):
            return tensor.reshape(spec.shape).to(engine.at)
        host = _bytes(tensor.contiguous()).numpy().data if spec.numel else memoryview(b"")
        return engine.load(host, spec, True)

    # Each collective gives its work, and what to do when that is done

    def _all_reduce(self, group: Any, *tensors: torch.Tensor) -> tuple:
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[self.kind.settings["reduce"]]
        flat = _own(tensors[0], self.alone) if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])
        dtype = self.specs[0].dtype
        if dtype is bool_ or dtype is int16:  # Gloo adds neither
            flat = flat.to(torch.int32)

        def finish() -> list[Any]:
            back = flat.to(TORCH[dtype]).reshape(-1)
            parts = back.split([s.numel for s in self.specs]) if len(self.specs) > 1 else [back]
            return [self._array(p, s) for p, s in zip(parts, self.specs)]

        return group.allreduce([flat], options), finish

    def _reduce_scatter(self, group: Any, *tensors: torch.Tensor) -> tuple:
        """Each member gets everyone's terms of its pieces, and adds them up in the group's order."""
        axis, n, outs = self.kind.settings["axis"], len(self.members), self.kind.outs
        pieces = [t.split([split(t.shape[axis], n, i)[1] for i in range(n)], axis) for t in tensors]
        alone = len(tensors) == 1
        sends = [pieces[0][i].contiguous() if alone else torch.cat([p[i].reshape(-1) for p in pieces]) for i in range(n)]
        combine = _COMBINE[self.kind.settings["reduce"]]
        work, taken = self._swap(group, sends, [(sum(o.numel for o in outs),)] * n, tensors[0].dtype)

        def finish() -> list[Any]:
            first, *rest = taken()
            for term in rest:
                first = combine(first, term)
            return [self._array(p, o) for p, o in zip(first.split([o.numel for o in outs]), outs)]

        return work, finish

    def _all_gather(self, group: Any, tensor: torch.Tensor) -> tuple:
        axis, size, n = self.kind.settings["axis"], self.kind.settings["size"], len(self.members)
        most = split(size, n, 0)[1]
        shape = (*tensor.shape[:axis], most, *tensor.shape[axis + 1 :])
        if tensor.shape[axis] != most:
            padded = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
            padded.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
            tensor = padded
        everyone = torch.empty((n, *shape), dtype=tensor.dtype, device=tensor.device)
        work = group._allgather_base(_bytes(everyone), _bytes(tensor))

        def finish() -> list[Any]:
            out = self.kind.outs[0]
            if axis == 0 and size == n * most:
                return [self._array(everyone.reshape(out.shape), out)]
            parts = [everyone[i].narrow(axis, 0, split(size, n, i)[1]) for i in range(n)]
            return [self._array(torch.cat(parts, axis), out)]

        return work, finish

    def _broadcast(self, group: Any, *tensors: torch.Tensor) -> tuple:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        if tensors:
            return group.broadcast([_bytes(tensors[0])], options), list
        out = self.kind.outs[0]
        taken = torch.empty(out.shape, dtype=TORCH[out.dtype], device=self._device())
        return group.broadcast([_bytes(taken)], options), lambda: [self._array(taken, out)]

    def _exchange(self, group: Any, *tensors: torch.Tensor) -> tuple:
        settings, me = self.kind.settings, self.talk.index
        dtype = TORCH[DTYPES[settings["dtype"]]]
        sends = {to: _cut(tensors[0], start, shape).contiguous() for to, start, shape in settings["sends"]}
        takes = {source: (start, shape) for source, start, shape in settings["takes"]}
        empty = torch.empty(0, dtype=dtype, device=self._device())
        shapes = [takes[m][1] if m in takes and m != me else (0,) for m in self.members]
        work, taken = self._swap(group, [sends[m] if m in sends and m != me else empty for m in self.members], shapes, dtype)

        def finish() -> list[Any]:
            if not takes:
                return []
            out = self.kind.outs[0]
            parts = dict(zip(self.members, taken()))
            if len(takes) == 1 and out.shape == next(iter(takes.values()))[1] and me not in takes:
                return [self._array(parts[next(iter(takes))], out)]
            made = torch.empty(out.shape, dtype=dtype, device=self._device())
            for source, (start, shape) in takes.items():
                _cut(made, start, shape).copy_(sends[me] if source == me else parts[source])
            return [self._array(made, out)]

        return work, finish

    def _swap(self, group: Any, sends: list[torch.Tensor], shapes: list[Shape], dtype: torch.dtype) -> tuple:
        """A tensor to each member, and one of these shapes from each."""
        item = torch.empty(0, dtype=dtype).element_size()
        sizes = [_numel(s) * item for s in shapes]
        out = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device())
        parts = [_bytes(s) for s in sends]
        data = torch.cat(parts) if sum(p.numel() > 0 for p in parts) != 1 else next(p for p in parts if p.numel())
        work = group.alltoall_base(out, data, sizes, [p.numel() for p in parts])
        return work, lambda: [p.view(dtype).reshape(s) for p, s in zip(out.split(sizes), shapes)]


_COMBINE: dict[str, Callable] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}


def _numel(shape: Shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: what is only moved is moved for every dtype alike. A single element counts as contiguous
    whatever its stride, so the stride is said."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _cut(tensor: torch.Tensor, start: Shape, shape: Shape) -> torch.Tensor:
    return tensor[tuple(slice(s, s + d) for s, d in zip(start, shape))]


def _own(tensor: torch.Tensor, alone: bool) -> torch.Tensor:
    """The tensor itself where nobody else sees its memory, since it is reduced in place; else a copy."""
    storage = tensor.untyped_storage()
    owners = torch._C._storage_Use_Count(storage._cdata)  # the table's tensor, this one and `storage`; a view would be more
    alone = alone and owners <= 3 and storage.nbytes() == tensor.numel() * tensor.element_size()
    return tensor if alone else tensor.clone()
