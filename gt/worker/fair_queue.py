"""Fair queueing of clients' work. Each client has a queue; the client with the least device time divided by its weight
(virtual time) is served next. An idle client accumulates no credit. It reads no clock and knows no sockets.

Runs with collectives keep the dispatcher's order on every worker, or workers would deadlock: a run with collectives begins
only when all earlier ones have ended. Other runs overtake them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from math import inf
from operator import itemgetter
from typing import Any

from gt.ops import TABLE
from gt.transport.messages import Came, Run

SLICE = 0.002  # seconds of device time after which a client's turn ends, if others wait
RECENT = 512  # waiting times kept of each client
_NUMBER = itemgetter(0)


class Share:
    """One client's queue, weight and used device time."""

    __slots__ = (
        "messages", "virtual", "weight", "user", "limit", "seconds", "entitled", "since", "turns", "waits", "collectives",
        "came",
    )  # fmt: skip

    def __init__(self, since: float = 0.0) -> None:
        self.since = since  # device seconds of all clients at its arrival
        self.messages: deque[tuple[Any, bool, float]] = deque()  # each with whether it has collectives, and its arrival time
        self.virtual = 0.0  # device seconds divided by weight; raised to the queue's virtual time after a pause
        self.came = 0  # the queue's `arrivals` at its last arrival after a pause
        self.weight = 1.0
        self.user, self.limit = "", 1.0  # its user, and the maximum weight of all busy clients of that user together
        self.seconds = 0.0
        self.entitled = 0.0  # device seconds of its fair share while it had work
        self.turns = 0
        self.waits: deque[float] = deque(maxlen=RECENT)  # seconds from a message's arrival to its start
        self.collectives: set[int] = set()  # numbers of collective kinds and of traces with collectives


class FairQueue:
    """The queued messages of all clients."""

    def __init__(self) -> None:
        self.shares: dict[str, Share] = {}
        self.active: dict[str, Share] = {}  # of those, the clients with messages or a run in progress
        # the least virtual time of the active clients when the last turn began: a client back from a pause starts there
        self.virtual = 0.0
        self.interactive: set[str] = set()  # the clients with this priority
        self.users: dict[str, float] = {}  # virtual time of users, summed over their clients, including departed ones
        self.collective_runs: deque[str] = (
            deque()
        )  # clients of the runs with collectives that have not ended, in the order of arrival
        self.collective_run_begun = False  # whether the first of these runs has begun
        self.instructions = 0  # in all queues
        self.arrivals = 0  # arrivals of work for idle clients
        self.preemptions = 0  # turns that ended before their run did
        self.total = 0.0  # device seconds of all clients, including departed ones

    def introduce(self, came: Came) -> None:
        """Note a client's weight, priority and user, if it has another weight than 1 or a user with a key of its own."""
        share = self.shares.setdefault(came.client, Share(self.total))
        if came.interactive:
            self.interactive.add(came.client)
        share.weight, share.user, share.limit = came.weight, came.user, came.user_weight

    def put(self, client: str, message: Any, now: float) -> None:
        share = self.shares.get(client)
        if share is None:
            share = self.shares[client] = Share(self.total)
        if client not in self.active:
            self.active[client] = share
            self.arrivals += 1
            share.came = self.arrivals
            share.virtual = max(share.virtual, self.virtual)
            if share.user:  # a new client of a user continues with the user's virtual time
                share.virtual = max(share.virtual, self.users.get(share.user, 0.0))
                self.users[share.user] = max(self.virtual, self.users.get(share.user, 0.0))
        ordered = False
        if type(message) is Run:
            self.instructions += len(message.code)
            ordered = self._holds_collectives(share, message)
            if ordered:
                self.collective_runs.append(client)
        share.messages.append((message, ordered, now))

    def _holds_collectives(self, share: Share, run: Run) -> bool:
        for kind in run.kinds:
            row = TABLE.get(kind.op)
            if row is not None and row.collective:
                share.collectives.add(kind.number)
        if not share.collectives:
            return False
        for trace in run.traces:
            if not share.collectives.isdisjoint(map(_NUMBER, trace.body)):
                share.collectives.add(trace.number)
        return not share.collectives.isdisjoint(map(_NUMBER, run.code))

    def waiting(self) -> bool:
        """Whether any message is queued."""
        return any(share.messages for share in self.shares.values())

    def next(
        self, parked: str | None, preempted: Collection[str], behind: Callable[[str], bool] | None = None,
        away: Callable[[str], bool] | None = None,
    ) -> str | None:  # fmt: skip
        """The client whose turn it is: of those with work, the one with the least virtual time. The work of `parked` waits
        for other workers; `preempted` have begun a run that they have not ended; who is `behind` has work on the device, and
        nobody is served meanwhile who had more than that one by a slice: side by side the device would divide its time evenly,
        whatever the weights. The turn of who is `away` comes later. Of equals an interactive one goes first: after a pause it
        has the virtual time of a busy one, whose latest calls are not charged yet."""
        found, least, first, lowest, idle = None, 0.0, inf, inf, []
        for client, share in self.active.items():
            if client == parked:
                continue
            if client in preempted or self._can_begin(share):
                lowest = min(lowest, share.virtual)
                if away and away(client):
                    continue
                first = min(first, share.virtual)
                sooner = found is None or share.virtual < least or share.virtual == least and client in self.interactive
                if sooner and not (behind and behind(client)):
                    found, least = client, share.virtual
            elif not share.messages:
                idle.append(client)
        for client in idle:
            del self.active[client]
        if found is None or least > first + SLICE:
            return None
        self.virtual = lowest
        return found

    def can_run(self, client: str, preempted: Collection[str]) -> bool:
        """Whether this client has executable work."""
        return client in preempted or (client in self.active and self._can_begin(self.active[client]))

    def _can_begin(self, share: Share) -> bool:
        if not share.messages:
            return False
        ordered = share.messages[0][1]
        return not ordered or (not self.collective_run_begun and self.shares[self.collective_runs[0]] is share)

    def others(self, client: str, parked: str | None, preempted: Collection[str]) -> bool:
        """Whether another client has executable work."""
        return any(
            other != client and other != parked and (other in preempted or self._can_begin(share))
            for other, share in self.active.items()
        )

    def waits(self, clients: Collection[str]) -> bool:
        """Whether one of these clients has a message that waits for its turn."""
        return any(share.messages and client in clients for client, share in self.active.items())

    def newcomer(self, client: str, arrivals: int) -> bool:
        """Whether a client that was idle at the count `arrivals` has executable work, and no more virtual time than this
        one."""
        if self.arrivals == arrivals:
            return False
        most = self.shares[client].virtual if client in self.shares else 0.0
        return any(
            share.came > arrivals and other != client and share.virtual <= most and self._can_begin(share)
            for other, share in self.active.items()
        )

    def first_runs(self, client: str, seconds: float) -> list[tuple[str, Run]]:
        """The next runs without collectives of other clients that have no more virtual time than this one will have after so
        many seconds more; the least virtual time first."""
        share = self.shares.get(client)
        most = share.virtual + seconds / share.weight if share is not None else 0.0
        waiting = [(each.virtual, other, each.messages[0]) for other, each in self.active.items() if each.messages]
        waiting = [found for found in waiting if found[0] <= most and found[1] != client]
        waiting.sort(key=_NUMBER)
        return [(other, run) for _, other, (run, ordered, _) in waiting if type(run) is Run and not ordered]

    def alone(self, run: Run) -> Share | None:
        """The share of a run's client, if all others are idle, this run is its only work and has no collectives."""
        share = self.shares.get(run.client) if not self.active else None
        plain = share is not None and not (run.kinds or run.traces or share.collectives or share.user)
        return share if plain else None

    def charge_alone(self, share: Share, seconds: float) -> None:
        """As `charge`, for a run that `alone` accepted."""
        share.turns += 1
        share.seconds += seconds
        share.entitled += seconds
        self.total += seconds
        if share.virtual > self.virtual:
            self.virtual = share.virtual
        share.virtual = self.virtual + seconds / share.weight  # idle time is not saved up
        share.waits.append(0.0)

    def take(self, client: str, now: float) -> Any:
        """Remove and return the client's next message."""
        share = self.shares[client]
        message, ordered, came = share.messages.popleft()
        if type(message) is Run:
            self.instructions -= len(message.code)
            share.waits.append(now - came)
            self.collective_run_begun = self.collective_run_begun or ordered
        return message

    def ended(self) -> None:
        """The current run with collectives has ended."""
        self.collective_runs.popleft()
        self.collective_run_begun = False

    def charge(self, client: str, seconds: float, turns: int = 1) -> None:
        """Charge a client for the device time of its turn, or of several."""
        share = self.active.get(client)
        if share is None or share.user or len(self.active) > 1:
            self.charge_all({client: (seconds, turns)})
            return
        self.total += seconds
        share.seconds += seconds
        share.entitled += seconds
        share.turns += turns
        share.virtual += seconds / share.weight

    def charge_all(self, used: Mapping[str, tuple[float, int]]) -> None:
        """Charge clients for the device seconds of so many turns. The seconds of all of them are divided among the clients that
        have work, by weight, as their fair shares."""
        charged = {client: share for client in used if (share := self.shares.get(client)) is not None}
        sharing = charged if charged.keys() == self.active.keys() else charged | self.active
        weights = dict(zip(sharing, _weights(sharing.values())))
        given = sum([used[client][0] for client in charged])
        part = given / (sum(weights.values()) or 1.0)
        self.total += given
        for client, share in sharing.items():
            share.entitled += part * weights[client]
        for client, share in charged.items():
            seconds, turns = used[client]
            share.seconds += seconds
            share.turns += turns
            share.virtual += seconds / weights[client]
            if share.user:
                self.users[share.user] = self.users.get(share.user, self.virtual) + seconds / share.limit

    def even(self, but: Collection[str]) -> bool:
        """Whether all that have something to do, but for these, have the same share."""
        return len(set(_weights([share for client, share in self.active.items() if client not in but]))) <= 1

    def forget(self, client: str) -> None:
        """Forget a departed client, unless it has messages left: those of a later client of its name, or another Drop."""
        share = self.shares.get(client)
        if share is None or not share.messages:
            self.shares.pop(client, None)
            self.active.pop(client, None)
            self.interactive.discard(client)

    def stats(self) -> dict[str, dict[str, float]]:
        """For each client: device seconds, its share of all, its fair share in seconds, queued instructions, and waiting
        times."""
        return {client: _stats(s, self.total - s.since) for client, s in self.shares.items()}


def _weights(active: Collection[Share]) -> list[float]:
    """The weights of busy clients; together, a user's clients have at most that user's weight."""
    together: dict[str, float] = {}
    for each in active:
        together[each.user] = together.get(each.user, 0.0) + each.weight
    return [each.limit * each.weight / max(1.0, together[each.user]) if each.user else each.weight for each in active]


def _stats(share: Share, total: float) -> dict[str, float]:
    waits = sorted(share.waits) or [0.0]
    return {
        "seconds": share.seconds, "share": share.seconds / (total or 1.0), "weight": share.weight, "turns": share.turns,
        "entitled": share.entitled, "total": total,
        "queue": sum(len(m.code) for m, _, _ in share.messages if type(m) is Run),
        "wait_p50": waits[len(waits) // 2], "wait_p99": waits[min(len(waits) - 1, len(waits) * 99 // 100)],
    }  # fmt: skip
