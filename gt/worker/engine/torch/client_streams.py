"""Clients on one GPU: each has a stream of its own, interactive ones of higher priority, so that a small kernel waits for no
other queue. Where several clients are busy, device time is measured by events, a client has at most two calls of programs in
flight while another waits, and the worker waits for nobody's kernels: answers are sent when the device has come to them. Calls
of clients of the same weight run side by side; of others one behind another, as the device knows nothing of weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any
from weakref import finalize

import torch

from gt.worker.engine.torch.device_time import DeviceTime, OpenTurn
from gt.worker.engine.torch.graph_numbers import SLOTS
from gt.worker.engine.torch.pinned_maps import PinnedMaps

IN_FLIGHT = 2  # most calls of programs that a client may have on the device while others wait;
SHORT = (
    400e-6  # while nobody does, as many as take so many seconds there, as a turn costs more than the launch of a short call,
)
MANY = SLOTS  # but no more than a graph can be given numbers for without waiting for the device
SHAPES, COPIES = 256, 4  # most shapes of small answers whose pinned memory is kept, and most of each
RECENT = 1 / 8  # weight of a turn in the mean time of a client's calls
HIGH = -5  # the highest priority of any device; CUDA takes the nearest that it has


Pair = tuple[Any, Any]  # a client's stream, and its side stream for instructions off the critical path of CUDA graphs


class InFlight:
    """Turns that the device may not have ended, and the number of their calls."""

    __slots__ = ("turns", "calls")

    def __init__(self) -> None:
        self.turns: deque[OpenTurn] = deque()
        self.calls = 0

    def add(self, turn: OpenTurn) -> None:
        self.turns.append(turn)
        self.calls += turn.calls

    def at_least(self, calls: int) -> bool:
        """Whether so many are in flight. The device is asked only where there seem to be as many: this is called for each
        client before each turn."""
        while self.calls >= calls and self.turns and (self.turns[0].done or self.turns[0].ends.query()):
            self.calls -= self.turns.popleft().calls
        return self.calls >= calls


class StreamPairs:
    """The streams of clients. Libraries keep a workspace for each stream, whose address CUDA graphs have recorded: no two
    clients whose kernels run concurrently may share one. New clients reuse the streams of departed ones. PyTorch has a pool of
    32 streams for each priority, and then reuses the first."""

    MAX_PAIRS = 12  # most pairs of each priority: further clients share a pair

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.users: dict[int, list[int]] = {}  # by priority, the number of clients of each pair
        self.made: dict[int, list[Pair]] = {}

    def take(self, priority: int) -> Pair:
        users, made = self.users.setdefault(priority, []), self.made.setdefault(priority, [])
        if 0 not in users and len(made) < self.MAX_PAIRS:
            made.append((self.make(priority), self.make(priority)))
            users.append(0)
        least = users.index(min(users))
        users[least] += 1
        return made[least]

    def give_back(self, pair: Pair) -> None:
        for priority, made in self.made.items():
            if pair in made:
                self.users[priority][made.index(pair)] -= 1


class ClientStreams:
    """Set by the worker: `shared`, whether more than one client is busy, and `ordered`, whether they have different weights."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.shared, self.ordered = device, False, False
        self.maps = PinnedMaps(device)
        self.pairs = StreamPairs(lambda priority: torch.cuda.Stream(device, priority=priority))
        self.streams: dict[str, Pair] = {}
        self.preferred: set[str] = set()  # interactive clients
        self.current = ""  # client on whose stream kernels are launched
        self.flights: dict[str, InFlight] = {}  # by client, its turns with calls of programs
        self.order = InFlight()  # of all clients that are not interactive, while they are ordered
        self.each: dict[str, float] = {}  # by client, device seconds of a call
        self.short: set[str] = set()  # clients of which MANY calls take no more than SHORT
        self.launched = 0  # calls in the turn at hand
        self.time = DeviceTime()
        self.began: Any = None  # the event at the beginning of the turn at hand
        self.spare: list[Any] = []  # events of answers that were sent
        self.hosts: dict[
            tuple[Any, Any], list[torch.Tensor]
        ] = {}  # pinned memory of answers that were sent, by shape and dtype
        self.written: deque[tuple[Any, Any]] = deque()  # by event, memory that ended recordings write
        self.marks: dict[str, Any] = {}  # by client, the event of its last acknowledgement while it is alone
        self.answers: deque[tuple[str, Any, Callable[[], Any]]] = (
            deque()
        )  # client, event, and the function that makes the answer after it

    def prefer(self, client: str) -> None:
        self.preferred.add(client)

    def use(self, client: str) -> None:
        """Launch on this client's stream from now on."""
        if client != self.current:
            self.current = client
            torch.cuda.set_stream(self.pair()[0])

    def stream(self) -> Any:
        """The stream that was set by `use`. PyTorch gives the current one in ten times the time."""
        return self.pair()[0] if self.current else torch.cuda.current_stream(self.device)

    def pair(self) -> Pair:
        """The streams of the current client."""
        found = self.streams.get(self.current)
        if found is None:
            found = self.streams[self.current] = self.pairs.take(HIGH if self.current in self.preferred else 0)
        return found

    def running(self, client: str) -> bool:
        """Whether the device has work of this client; asked without waiting for the device."""
        pair = self.streams.get(client)
        return pair is not None and not pair[0].query()

    def forget(self, client: str) -> None:
        """Forget a departed client; its memory is reused after its kernels have run."""
        if (pair := self.streams.pop(client, None)) is not None:
            pair[0].synchronize()
            self.pairs.give_back(pair)
        self.preferred.discard(client)
        self.flights.pop(client, None)
        self.marks.pop(client, None)
        self.each.pop(client, None)
        self.short.discard(client)
        self.answers = deque(a for a in self.answers if a[0] != client)
        if client == self.current:
            torch.cuda.set_stream(torch.cuda.default_stream(self.device))
            self.current = ""

    def begin(self, client: str) -> None:
        self.use(client)
        if self.ordered and client not in self.preferred and self.order.turns:
            last = self.order.turns[-1]
            if last.client != client and not last.done:
                self.pair()[0].wait_event(last.ends)
        self.began, self.launched = self._mark(self.time.spare, timed=True), 0

    def end(self, client: str) -> None:
        self.use(client)
        turn = self.time.add(
            client, self.began, self._mark(self.time.spare, timed=True), self.launched, client in self.preferred
        )
        if self.launched:
            self.flights.setdefault(client, InFlight()).add(turn)
            if self.ordered and client not in self.preferred:
                self.order.add(turn)
        self.launched = 0

    def called(self, client: str) -> None:
        """A program was launched."""
        self.launched += 1

    def behind(self, client: str, alone: bool) -> bool:
        """Whether a client may not begin a turn yet: the device has calls of its last one, or, if it is `alone` and there is
        nobody else's work for the device in between, of its last two."""
        if self.ordered and client not in self.preferred and self.order.at_least(IN_FLIGHT):
            return True
        flight = self.flights.get(client)
        if flight is None or not flight.calls:  # as of most clients, each of which is asked about before each turn
            return False
        return flight.at_least(self._most(client, alone) // 2 + 1 if alone else 1)

    def full(self, client: str, alone: bool) -> bool:
        """Whether the turn at hand has launched as many calls as it may. Where clients have one order, that is one: another
        waits behind it. A client that is alone has two turns in flight."""
        if self.ordered and client not in self.preferred:
            return self.launched > 0
        most = self._most(client, alone)
        return self.launched >= (most // 2 if alone else most)

    def _most(self, client: str, alone: bool) -> int:
        """How many calls a client may have in flight."""
        return MANY if alone and client in self.short else IN_FLIGHT

    def measured(self) -> dict[str, tuple[float, int]]:
        """Device seconds, and the number, of turns that have ended there, by client."""
        found: dict[str, tuple[float, int]] = {}
        for client, seconds, calls in self.time.measured():
            before, turns = found.get(client, (0.0, 0))
            found[client] = before + seconds, turns + 1
            if calls and client in self.streams:
                mean = self.each.get(client, seconds / calls)
                mean = self.each[client] = mean + (seconds / calls - mean) * RECENT
                (self.short.add if mean * MANY <= SHORT else self.short.discard)(client)
        return found

    def keep_up(self, interrupted: Callable[[], bool] | None = None) -> None:
        """Wait for the kernels of the current client that were launched before the last call of this: the device has work
        while the worker takes the next, and no more than that. The wait ends where it is `interrupted`, as another client asks:
        it would wait for several steps of a trainer."""
        before, self.marks[self.current] = self.marks.get(self.current), self._mark(self.spare)
        if before is None:
            return
        if interrupted is None:
            before.synchronize()
        else:
            while not before.query() and not interrupted():
                pass
        self.spare.append(before)

    def later(self, client: str, answer: Callable[[], Any], copied: Any = None) -> None:
        """Send an answer once the device has executed all kernels launched so far, or has come to the event of a copy."""
        self.answers.append((client, self._mark(self.spare) if copied is None else copied, answer))

    def answered(self, clients: Collection[str] | None = None) -> list[Any]:
        """The answers, or those to some clients, whose events are done. Streams may overtake one another, the answers of one
        client may not."""
        found: list[Any] = []
        waiting: set[str] = set()
        kept: deque[tuple[str, Any, Callable[[], Any]]] = deque()
        for client, event, answer in self.answers:
            if client in waiting or clients is not None and client not in clients or not event.query():
                waiting.add(client)
                kept.append((client, event, answer))
            else:
                found.append(answer())
                self.spare.append(event)
        self.answers = kept
        return found

    def awaited(self, client: str) -> bool:
        """Whether an answer to this client waits for the device."""
        return any(of == client for of, _, _ in self.answers)

    def stats(self, client: str) -> dict[str, int]:
        """The priority of a client's stream, once it has one; lower numbers go first."""
        return {"stream_priority": self.streams[client][0].priority} if client in self.streams else {}

    def pending(self) -> bool:
        """Whether to poll again soon."""
        return bool(self.answers or self.time.turns)

    def to_host(self, array: torch.Tensor) -> torch.Tensor:
        """A copy in host memory, valid once the device has executed it. `host_read` takes the memory back."""
        spare = self.hosts.get((array.shape, array.dtype))
        host = spare.pop() if spare else torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
        return host.copy_(array, non_blocking=True)

    def keep_written(self, recording: Any, written: tuple[Any, ...]) -> None:
        """Keep the host memory and the events that a recording's replays write until the last of them has ended: the recording
        may end before, and PyTorch, which knows nothing of a kernel's writes, would give the memory to someone else."""
        finalize(recording, self._replays_end, self.stream(), written).atexit = False

    def _replays_end(self, stream: Any, written: tuple[Any, ...]) -> None:
        while self.written and self.written[0][0].query():
            self.written.popleft()
        event = torch.cuda.Event()
        event.record(stream)
        self.written.append((event, written))

    def to_host_early(self, array: torch.Tensor, done: Any) -> tuple[torch.Tensor, Any]:
        """As `to_host`, of a value that the device has at the event `done`, whatever it was given behind that; also the event
        of the copy, for which the next calls wait, as they may write over the value."""
        stream, side = self.pair()
        side.wait_event(done)
        torch.cuda.set_stream(side)
        try:
            host = self.to_host(array)
        finally:
            torch.cuda.set_stream(stream)
        copied = self.spare.pop() if self.spare else torch.cuda.Event()
        copied.record(side)
        stream.wait_event(copied)
        return host, copied

    def read_early(self, array: torch.Tensor, done: Any) -> torch.Tensor:
        """The value on the host, as soon as the device has it."""
        host, copied = self.to_host_early(array, done)
        copied.synchronize()
        found = host.clone()
        self.host_read(host)
        self.spare.append(copied)
        return found

    def host_read(self, host: torch.Tensor) -> None:
        """A copy was read, after its event: its memory serves again, as to pin memory takes longer than the copy."""
        if len(self.hosts) > SHAPES:
            self.hosts.clear()
        spare = self.hosts.setdefault((host.shape, host.dtype), [])
        if len(spare) < COPIES:
            spare.append(host)

    def _mark(self, spare: list[Any], timed: bool = False) -> Any:
        event = spare.pop() if spare else torch.cuda.Event(enable_timing=timed)
        event.record(self.pair()[0])  # which is the current stream; to ask PyTorch for that takes longer than to record
        return event
