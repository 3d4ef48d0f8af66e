"""Offloads tensors of idle clients to host memory. When the device is full, buffers of the least recently served client are
moved to the host, and back when an instruction needs them; reads are answered from either. `residency.py` decides and
counts, engines copy."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gt.errors import OutOfMemory
from gt.program.code import number_of
from gt.transport.messages import Run
from gt.worker.cancel import Parked
from gt.worker.client_values import Broken, ClientValues, Code, Moved, check_device, failure, out_of_memory
from gt.worker.engine import Engine
from gt.worker.memory_release import free_cached
from gt.worker.programs.compile import COLLECTIVE, FREED, Executable
from gt.worker.quotas import Fail, copied, growth, may_share
from gt.worker.residency import DeviceBuffer, Residency
from gt.worker.turns import Preempted

TRIES = (
    2  # retries of an instruction that ran out of device memory: after moving the bytes it needs, then after moving all it can
)
ALL = 1 << 62
UNKNOWN = FREED, None, None  # of an instruction without a kind, which fails elsewhere


class Paused(Protocol):
    """A run in progress."""

    @property
    def values(self) -> ClientValues: ...
    @property
    def stopped(self) -> Parked | Preempted: ...
    @property
    def rest(self) -> Code: ...


class Holder(Protocol):
    """The worker whose clients' memory is moved: its values, and its runs in progress."""

    spaces: dict[str, ClientValues]

    def paused(self, client: str) -> Paused | None: ...
    def replace_rest(self, client: str, rest: Code) -> None: ...


class HostMemory:
    worker: Holder

    def __init__(self, engine: Engine, fail: Fail) -> None:
        self.engine, self.streams, self.fail = engine, engine.streams, fail
        self.residency = Residency()
        self.always = False  # whether a limit for the device was given, which then also applies to a single client
        self.full = ""  # why the last move to the host failed
        self.stays = False  # whether nothing may be moved at the moment
        self.seconds = 0.0  # that moves took
        self.trying: tuple[tuple[Any, ...], int] = (
            (),
            0,
        )  # the instruction that ran out of device memory, and the number of its retries

    def limit(self, device: int, host: int) -> None:
        """Set the maximum bytes of tensors on the device (0: the device's memory) and of offloaded tensors on the host."""
        self.residency = Residency(device or self.engine.capacity(), host)
        self.always = bool(device)

    def watch(self, values: ClientValues, code: Code) -> Code:
        """The same instructions, each after its operands are on the device with room for its results. A single client has no
        overhead, as there is no other client's memory to move."""
        shared = self.residency.device and (self.always or len(self.worker.spaces) > 1)
        values.guarded = bool(shared or values.moved)
        if not values.guarded:
            self.residency.stale = True
            return code
        return self._watched(values, code)

    def watch_again(self, values: ClientValues, ins: tuple[Any, ...]) -> Code:
        """The instruction before which a run was left: others may have moved its operands since."""
        return self._watched(values, iter((ins,))) if values.guarded else iter((ins,))

    def _watched(self, values: ClientValues, code: Code) -> Code:
        kinds, r = values.kinds, self.residency
        for ins in code:
            form, _, ready = kinds.get(ins[0], UNKNOWN)
            if form == FREED:
                yield ins
                continue
            most, leaves, shares = ready.needs or _note_needs(ready)
            if values.moved or r.stale or r.on_device + most > r.device:
                try:
                    self._prepare(values, ready, ins, _needs(ready))
                except OutOfMemory as full:
                    if form != COLLECTIVE:
                        r.refused += 1
                        self.fail(values, ins, full)
                        continue
                    self._break_moved(values, ins, ready, full)  # a collective is executed nevertheless, as peers wait for it
            r.on_device += leaves
            yield ins
            if shares:
                r.on_device += copied(values, ready, ins, self.engine)

    def has_room(self, values: ClientValues, run: Run) -> bool:
        """Whether a run of instructions that were executed before needs no memory to be moved."""
        if not values.guarded and not self.residency.device:
            return True
        r, known = self.residency, (values.kinds.get(number, UNKNOWN) for number in map(number_of, run.code))
        needs = [ready.needs for form, _, ready in known if form != FREED]
        return not (values.moved or r.stale or None in needs or r.on_device + sum(most for most, *_ in needs) > r.device)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Move nothing to the host meanwhile."""
        self.stays = True
        try:
            yield
        finally:
            self.stays = False

    def _prepare(self, values: ClientValues, ready: Any, ins: tuple[Any, ...], need: int) -> None:
        """Move the operands of an instruction to the device, and make room for its results."""
        copies = {}
        if values.moved:
            operands = (values.table.get(ins[i]) for i in ready.tensor_positions)
            copies = {id(a.copy): a for a in operands if type(a) is Moved}
        need += sum(moved.copy.nbytes for moved in copies.values())
        if not copies and (not need or self.residency.fits(need)):
            return
        began, moves, taken = self.engine.clock(), self.residency.moves, [ins[i] for i in ready.tensor_positions]
        if not self.residency.fits(need):
            self.make_room(values, need, taken)
        for moved in copies.values():
            self._bring_back(values, moved, taken)
        if self.residency.moves > moves:
            self.seconds += self.engine.clock() - began

    def _bring_back(self, values: ClientValues, moved: Moved, taken: Collection[int]) -> None:
        try:
            arrays = self._copied_back(values, moved, taken)
        except Exception as error:  # each engine raises its own error when memory is short
            check_device(self.engine, error)
            if not out_of_memory(error):
                raise
            raise OutOfMemory(f"{moved.copy.nbytes:,} bytes could not be moved back to {self.engine.device}: {error}") from None
        for id, array in zip(moved.ids, arrays):
            if type(held := values.table.get(id)) is Moved and held.copy is moved.copy:
                values.table[id] = array
                values.moved -= 1
        self.residency.moved_back(moved.copy.nbytes)

    def _copied_back(self, values: ClientValues, moved: Moved, taken: Collection[int]) -> list[Any]:
        """The tensors on the device; if it has less room than counted, after moving out all that can be moved."""
        try:
            return moved.copy.back()
        except Exception as error:  # each engine raises its own error when memory is short
            if not out_of_memory(error) or not self._move_out(values, ALL, taken, some=True):
                raise
        return moved.copy.back()

    def _break_moved(self, values: ClientValues, ins: tuple[Any, ...], ready: Any, error: OutOfMemory) -> None:
        for i in ready.tensor_positions:
            if type(values.table.get(ins[i])) is Moved:
                values.table[ins[i]] = failure(ready.title, error, ins[i])

    def make_room(self, values: ClientValues, nbytes: int, taken: Collection[int] = ()) -> None:
        """Move the least recently used buffers until this many bytes fit on the device; raises OutOfMemory if they cannot.
        `taken` are tensors of this client that an instruction is about to use."""
        r, collected = self.residency, False
        self._count()
        while missing := r.missing(nbytes):
            if not self._move_out(values, missing, taken):
                if not collected:  # programs of departed clients hold their CUDA graphs in reference cycles
                    collected = gc.collect() >= 0
                    self._count()
                    continue
                left = f"{r.on_device:,} are taken there, {max(0, r.host - r.on_host):,} are left in host memory"
                raise OutOfMemory(
                    f"{nbytes:,} bytes more on {self.engine.device}, which has {r.device:,}: {left}"
                    f"{self.full and f' ({self.full})'}. Free tensors, or give more (GT_DEVICE_MEMORY, GT_HOST_MEMORY)"
                )
            self._count()

    def uploaded(self, values: ClientValues, nbytes: int) -> None:
        """Make room for the bytes of a client's upload."""
        r = self.residency
        if r.device and (self.always or len(self.worker.spaces) > 1):
            if not r.fits(nbytes):
                self.make_room(values, nbytes)
            r.on_device += nbytes

    def again(self, values: ClientValues, ins: tuple[Any, ...], error: Exception) -> bool:
        """Whether to retry an instruction that ran out of device memory, because other memory was moved out."""
        if not out_of_memory(error) or isinstance(error, OutOfMemory) or ins[0] not in values.kinds:
            return False
        ready = values.kinds[ins[0]][2]
        if any(
            ins[i] not in values.table for i in ready.tensor_positions
        ):  # it has freed inputs, and may have overwritten them
            return False
        before = self.trying[1] if self.trying[0] is ins else 0
        self.trying = (ins, before + 1)
        if before >= TRIES:
            return False
        traceback.clear_frames(error.__traceback__)  # they hold the arrays computed before it failed
        self._count()
        return self._move_out(
            values, ALL if before else max(1, _needs(ready)), [ins[i] for i in ready.tensor_positions], some=True
        )

    def _move_out(self, values: ClientValues, nbytes: int, taken: Collection[int], some: bool = False) -> bool:
        """Free this many bytes of the device, or, with `some`, as many of them as possible. Returns whether any were freed."""
        if self.stays:
            return False
        order = sorted(self.worker.spaces.values(), key=lambda v: (v is values, v.used))
        ids: dict[DeviceBuffer, list[int]] = {}
        buffers = {
            v.client: self._movable(v, taken if v is values else _held_ids(self.worker, v), ids)
            for v in order
            if v is not values or v.guarded
        }
        chosen = self.residency.choose(nbytes, [v.client for v in order], buffers)
        enough = bool(chosen) and (some or sum(b.nbytes for b in chosen) >= nbytes)
        owners = dict.fromkeys(b.client for b in chosen) if enough else [v.client for v in order]
        released = [self._release(self.worker.spaces[client]) for client in owners]
        if not any(released) or some:  # else the released memory may suffice
            released += [self._move(self.worker.spaces[b.client], ids[b]) for b in chosen if enough]
        if self.streams is not None:
            self.streams.use(values.client)
        free_cached(self.engine, self.residency.device)
        return any(released)

    def _movable(self, values: ClientValues, held: Collection[int], ids: dict[DeviceBuffer, list[int]]) -> list[DeviceBuffer]:
        """A client's buffers, except those of `held`; fills `ids` with the tensors of each buffer."""
        found: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for id, array in values.table.items():
            if type(array) is not Moved and type(array) is not Broken:
                number, nbytes = self.engine.buffer(array)
                found.setdefault(number, []).append(id)
                sizes[number] = nbytes
        kept = {self.engine.buffer(a)[0] for id in held if type(a := values.table.get(id)) not in (Moved, Broken, type(None))}
        made = {DeviceBuffer(values.client, number, sizes[number]): of for number, of in found.items() if number not in kept}
        ids.update(made)
        return list(made)

    def _move(self, values: ClientValues, ids: list[int]) -> bool:
        """Move a buffer with all its tensors to host memory. Returns whether it succeeded."""
        if self.streams is not None:
            self.streams.use(values.client)
        try:
            copy = self.engine.to_host([values.table[id] for id in ids])
        except (OSError, MemoryError, RuntimeError) as error:
            check_device(self.engine, error)
            self.full = f"{type(error).__name__}: {error}"
            return False
        if copy is None:
            return False
        self._guard(values)
        for index, id in enumerate(ids):
            values.table[id] = Moved(copy, ids, index)
        values.moved += len(ids)
        self.residency.moved_out(copy.nbytes)
        return True

    def _release(self, values: ClientValues) -> bool:
        """Release the memory that the faster forms of a client's programs keep for their next call, and the tensors whose
        addresses they have recorded. Returns whether any did."""
        forms: list[Any] = [getattr(ready, "faster", None) for _, _, ready in values.kinds.values()]
        try:
            return sum(f.release() for f in forms if f is not None and hasattr(f, "release")) > 0
        except RuntimeError as error:
            check_device(self.engine, error)
            raise

    def _guard(self, values: ClientValues) -> None:
        """Check the operands of the rest of a client's run."""
        if values.guarded:
            return
        values.guarded = True
        paused = self.worker.paused(values.client)
        if paused is not None:
            self.worker.replace_rest(values.client, self._watched(values, paused.rest))

    def _count(self) -> None:
        """Count the bytes on the device and in host memory."""
        spaces = self.worker.spaces.values()
        for values in spaces:
            values.moved = sum(type(a) is Moved for a in values.table.values())
        on_device = None if self.always else self.engine.allocated()  # includes libraries' workspaces, which cannot be moved
        if on_device is None:
            there = self.engine.recordings() | {number: n for values in spaces for number, n in self._there(values)}
            on_device = sum(there.values())
        self.residency.counted(on_device, sum(moved_bytes(values) for values in spaces))

    def _there(self, values: ClientValues) -> Iterator[tuple[int, int]]:
        for array in (*values.table.values(), *(came for _, came in values.arrived.values() if came is not None)):
            if type(array) is not Moved and type(array) is not Broken:
                yield self.engine.buffer(array)

    def stats(self) -> dict[str, int]:
        self.residency.on_host = sum(moved_bytes(values) for values in self.worker.spaces.values())
        return self.residency.stats()


def _needs(ready: Any) -> int:
    """Bytes that an instruction needs while it runs."""
    leaves = growth(ready)
    if not isinstance(ready, Executable) or getattr(ready.faster, "recorded", False):
        return leaves
    return max(leaves, ready.peak)


def _note_needs(ready: Any) -> tuple[int, int, bool]:
    """Most bytes that an instruction needs while it runs, bytes of its results, and whether these may lie in an operand's
    memory. They are kept: to compute them at each run took a question longer than the rest of its way to the first kernel."""
    leaves = growth(ready)
    most = max(leaves, ready.peak) if isinstance(ready, Executable) else leaves
    ready.needs = most, leaves, may_share(ready)
    return ready.needs


def moved_bytes(values: ClientValues) -> int:
    """Bytes of a client in host memory."""
    if not values.moved:
        return 0
    return sum({id(a.copy): a.copy.nbytes for a in values.table.values() if type(a) is Moved}.values())


def readable(value: Any) -> Any:
    """A tensor's array, on the device or in host memory, for a read."""
    return value.array if type(value) is Moved else value


def _held_ids(worker: Holder, values: ClientValues) -> list[int]:
    """Tensors that an instruction which has begun holds: to move them would free no memory. One before which a run was left
    has not begun: its operands are brought back when it does, or as many clients as are busy would fill the device."""
    paused = worker.paused(values.client)
    if paused is None or (isinstance(paused.stopped, Preempted) and paused.stopped.resume is None):
        return []
    ins = paused.stopped.instruction
    if not ins or ins[0] not in values.kinds:
        return []
    return [ins[i] for i in values.kinds[ins[0]][2].tensor_positions if i < len(ins)]
