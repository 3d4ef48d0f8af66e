"""Collectives of workers on one host through peer memory. Each member publishes the address of its part and reads from the
addresses of its peers, so that bytes are copied once, without a socket. Nothing blocks: a collective continues when the
peers that it needs have published theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator

import torch

from gt.spec import split
from gt.transport.process_memory import BROKEN_OFF, Inbox, PeerProcess
from gt.worker.collectives.members import name_of

SMALL = 64 << 10  # bytes up to which each member computes the whole reduction instead of a slice
CHUNK = 1 << 20  # bytes that are read and reduced at a time, while they are in the cache
COMBINE: dict[str, Callable] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}
ROUNDS = 3  # most rounds of a collective. All members advance by so many, however it ends
Publication = tuple[dict[int, int], Collection[int]]  # the address for each of these members, and the members to wait for
Steps = Generator[Publication, dict[int, int], None]  # is sent the addresses of those members


class PeerMemoryGroup:
    """The transport by peer memory: see `Transport`."""

    way = "memory"

    def __init__(
        self, members: tuple[int, ...], rank: int, peers: dict[int, PeerProcess], inbox: Inbox, generation: int = 0,
        of: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.rank, self.size, self.peers, self.inbox = rank, len(members), peers, inbox
        self.name = name_of(members, generation, of)  # a host's part of a group has a number of its own
        self.round = 0
        self.last: Round | None = None  # kept alive: if it did not end, a peer may still read its arrays

    def reduce(self, whole: torch.Tensor, how: str) -> Round:
        return self._begin(self._reduce(whole.view(-1), COMBINE[how]))

    def reduce_first(self, whole: torch.Tensor, how: str) -> Round:
        return self._begin(self._reduce(whole.view(-1), COMBINE[how], (0,)))

    def gather(self, out: torch.Tensor, part: torch.Tensor) -> Round:
        return self._begin(self._gather(out.view(self.size, -1), part))

    def spread(self, tensor: torch.Tensor) -> Round:
        return self._begin(self._spread(tensor))

    def swap(self, out: torch.Tensor, data: torch.Tensor, takes: list[int], sends: list[int]) -> Round:
        return self._begin(self._swap(out.split(takes), data.split(sends)))

    def scatter(self, data: torch.Tensor, sizes: list[int], how: str) -> tuple[Round, Callable[[], torch.Tensor]]:
        out = torch.empty(sizes[self.rank], dtype=data.dtype)
        return self._begin(self._scatter(out, data.split(sizes), COMBINE[how])), lambda: out

    def _begin(self, steps: Steps) -> Round:
        self.inbox.drain()
        self.inbox.forget(self.name, self.round)  # messages of an aborted round
        self.last = Round(self, steps, self.round)
        self.round += ROUNDS
        return self.last

    def end(self) -> None:
        """A member is gone."""
        self.inbox.forget(self.name, self.round + ROUNDS)

    # The steps of each operation between two rounds

    def _others(self) -> Iterator[int]:
        """The peers, beginning with the next rank, so that not all read from one."""
        for i in range(1, self.size):
            yield (self.rank + i) % self.size

    def _to_all(self, what: int = 0) -> Publication:
        return dict.fromkeys(self.peers, what), self.peers

    def _reduce(self, whole: torch.Tensor, combine: Callable, takers: Collection[int] | None = None) -> Steps:
        """Reduce in place: each member computes a slice of the result, then the takers (by default all) read the other slices.
        A small array is computed by each member as a whole, which saves a round."""
        takes = takers is None or self.rank in takers
        item, n, base = whole.element_size(), self.size, whole.data_ptr()
        addresses = yield self._to_all(base)
        if whole.nbytes <= SMALL:
            total = torch.empty_like(whole)
            if takes:
                self._reduce_into(total, whole, addresses, combine)
            yield self._to_all()
            if takes:
                whole.copy_(total)
            return
        start, size = split(len(whole), n, self.rank)
        mine = whole[start : start + size]
        self._reduce_into(mine, mine, {r: address + start * item for r, address in addresses.items()}, combine)
        yield self._to_all()
        for r in self._others() if takes else ():
            start, size = split(len(whole), n, r)
            self._take(whole[start : start + size], r, {r: addresses[r] + start * item})
        yield self._to_all()

    def _scatter(self, out: torch.Tensor, parts: tuple[torch.Tensor, ...], combine: Callable) -> Steps:
        addresses = yield {r: parts[r].data_ptr() for r in self.peers}, self.peers
        self._reduce_into(out, parts[self.rank], addresses, combine)
        yield self._to_all()

    def _reduce_into(self, out: torch.Tensor, mine: torch.Tensor, addresses: dict[int, int], combine: Callable) -> None:
        """Reduce this member's array and its peers' at these addresses, in the group's order, into `out`, which may be
        `mine`."""
        item = out.element_size()
        each = max(1, CHUNK // item)
        for at in range(0, len(out), each):
            self._fold(out[at : at + each], mine[at : at + each], {r: p + at * item for r, p in addresses.items()}, combine)

    def _fold(self, out: torch.Tensor, mine: torch.Tensor, addresses: dict[int, int], combine: Callable) -> None:
        term, total = torch.empty_like(mine), out
        if self.rank < 2:
            self._take(term, 1 - self.rank, addresses)
            combine(*((mine, term) if self.rank == 0 else (term, mine)), out=total)
        else:
            total = torch.empty_like(mine) if out.data_ptr() == mine.data_ptr() else out
            self._take(total, 0, addresses)
        for r in range(2 if self.rank < 2 else 1, self.size):
            if r != self.rank:
                self._take(term, r, addresses)
            combine(total, mine if r == self.rank else term, out=total)
        if total is not out:
            out.copy_(total)

    def _take(self, into: torch.Tensor, r: int, addresses: dict[int, int]) -> None:
        self.peers[r].read(into.data_ptr(), addresses[r], into.nbytes)

    def _gather(self, out: torch.Tensor, part: torch.Tensor) -> Steps:
        addresses = yield self._to_all(part.data_ptr())
        out[self.rank].copy_(part)
        for r in self._others():
            self._take(out[r], r, addresses)
        yield self._to_all()

    def _spread(self, tensor: torch.Tensor) -> Steps:
        if self.rank == 0:
            yield dict.fromkeys(self.peers, tensor.data_ptr()), ()
            yield {}, self.peers
        else:
            addresses = yield {}, (0,)
            self._take(tensor, 0, addresses)
            yield {0: 0}, ()

    def _swap(self, takes: tuple[torch.Tensor, ...], sends: tuple[torch.Tensor, ...]) -> Steps:
        """Only members that exchange data wait for each other."""
        to = {r: sends[r].data_ptr() for r in self.peers if len(sends[r])}
        sources = [r for r in self.peers if len(takes[r])]
        addresses = yield to, sources
        takes[self.rank].copy_(sends[self.rank])
        for r in self._others():
            if r in addresses:
                self._take(takes[r], r, addresses)
        yield dict.fromkeys(sources, 0), to


class Round:
    """A collective in progress: at each round it publishes an address, and continues when the needed peers have."""

    def __init__(self, group: PeerMemoryGroup, steps: Steps, number: int) -> None:
        self.group, self.steps, self.number, self.over = group, steps, number, False
        self.waits: Collection[int] = ()
        self._publish(*next(steps))

    def _publish(self, to: dict[int, int], waits: Collection[int]) -> None:
        self.number, self.waits = self.number + 1, waits
        for r, what in to.items():
            self.group.peers[r].tell(self.group.name, self.number, self.group.rank, what)

    def done(self) -> bool:
        inbox, name = self.group.inbox, self.group.name
        inbox.drain()
        while not self.over:
            peer_addresses = inbox.words.get((name, self.number), {})
            if BROKEN_OFF in peer_addresses.values():
                raise OSError("another worker of the group broke off the collective")
            if any(r not in peer_addresses for r in self.waits):
                return False
            inbox.words.pop((name, self.number), None)
            self._advance(peer_addresses)
        return True

    def _advance(self, peer_addresses: dict[int, int]) -> None:
        try:
            self._publish(*self.steps.send(peer_addresses))
        except StopIteration:
            self.over = True
        except Exception:  # after any failure, the peers that wait for this worker must know
            for peer in self.group.peers.values():
                with contextlib.suppress(OSError):  # the lost peer itself
                    peer.tell(self.group.name, self.number + 1, self.group.rank, BROKEN_OFF)
            raise

    def wait(self) -> None:
        """Nothing to do: the caller has polled `done`."""
