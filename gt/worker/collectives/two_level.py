"""Hierarchical collectives over any two transports: inside each set of close members, such as the workers of a host, then
between the first members of the sets, then inside again. The sets are computed here, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gt.worker.client_values import Broken
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.collectives.ops import Transport, Work

WIDE = 16  # most members of a collective by mail in one level, as every pair has a connection
Members = tuple[int, ...]
Sets = tuple[Members, ...]


def hosts_agreed(members: Members, near: Mapping[int, Members]) -> Sets | None:
    """The members by host, from each member's list of members whose memory it can read, including itself. None if the lists
    disagree, if all are on one host, or if each is alone on its host."""
    for m in members:
        if m not in near[m] or not set(near[m]) <= set(members) or any(set(near[o]) != set(near[m]) for o in near[m]):
            return None
    found = tuple(dict.fromkeys(tuple(o for o in members if o in near[m]) for m in members))
    return found if 1 < len(found) < len(members) else None


def sets_by_mail(members: Members, host: Callable[[int], str]) -> Sets | None:
    """The sets of a collective by mail: the hosts, if one has several members. More than WIDE members of one host, or of as
    many hosts, are divided into about as many sets as a set has members. None if one level is enough."""
    by_host: dict[str, list[int]] = {}
    for m in members:
        by_host.setdefault(host(m), []).append(m)
    hosts = [list(members)] if len(by_host) == len(members) else list(by_host.values())
    if len(hosts) == 1 and len(members) <= WIDE:
        return None
    return tuple(cut for there in hosts for cut in _cut(tuple(there)))


def _cut(members: Members) -> Iterator[Members]:
    n = 1 if len(members) <= WIDE else math.isqrt(len(members))
    for i in range(n):
        yield members[i * len(members) // n : (i + 1) * len(members) // n]


class Stages:
    """Consecutive works: each is begun when the one before is done. After a stage with a failed operand (OperandFailed) the
    other stages still run, as their members wait for this one; `spoil` makes them send that cause."""

    def __init__(self, steps: Iterator[Any], spoil: Callable[[Broken], None]) -> None:
        self.steps, self.spoil = steps, spoil
        self.failed: OperandFailed | None = None
        self.now: Any = next(steps, None)

    def done(self) -> bool:
        while self.now is not None:
            if not self.now.done():
                return False
            try:
                self.now.wait()
            except OperandFailed as failed:
                self.failed = self.failed or failed
                self.spoil(self.failed.cause)
            self.now = next(self.steps, None)
        return True

    def wait(self) -> None:
        if self.failed is not None:
            raise self.failed

    @property
    def sources(self) -> list[int]:
        """By mail: the members whose pieces the current stage waits for."""
        return self.now.sources if self.now is not None else []

    def abandon(self, cause: Broken) -> None:
        """By mail: take part in the remaining stages with this cause in place of data, and wait for nobody."""
        self.spoil(cause)
        while self.now is not None:
            self.now.abandon(cause)
            self.now = next(self.steps, None)


class TwoLevel:
    """One member's `Transport`. `inside` is the transport of its own set, None if it is alone there; `between` that of the
    first members of all sets, None if it is not one of them. `ranks` are the group ranks of each set's members; the
    group's first member is the first of the first set. An exchange has no levels: bytes are sent to their destination directly.
    `blank(like, n)` makes an array of n elements."""

    def __init__(
        self, way: str, ranks: Sets, rank: int, inside: Transport | None, between: Transport | None,
        blank: Callable[[Any, int], Any], spoil: Callable[[Broken], None] = lambda cause: None,
    ) -> None:  # fmt: skip
        self.way, self.ranks, self.rank, self.inside, self.between = way, ranks, rank, inside, between
        self.blank, self.spoil = blank, spoil
        self.own = next(there for there in ranks if rank in there)

    def reduce(self, whole: Any, how: str) -> Stages:
        return Stages(self._reduce(whole.reshape(-1), how), self.spoil)

    def gather(self, out: Any, part: Any) -> Stages:
        return Stages(self._gather(out, part), self.spoil)

    def spread(self, tensor: Any) -> Stages:
        return Stages(self._spread(tensor), self.spoil)

    def scatter(self, data: Any, sizes: list[int], how: str) -> tuple[Stages, Callable[[], Any]]:
        """By an all-reduce, which moves no more bytes between the sets than a reduce-scatter would."""
        whole, start = self.blank(data, len(data)), sum(sizes[: self.rank])
        whole[...] = data
        return self.reduce(whole, how), lambda: whole[start : start + sizes[self.rank]]

    def reduce_first(self, whole: Any, how: str) -> Work:
        raise AssertionError("there is no third level")

    def swap(self, out: Any, data: Any, takes: list[int], sends: list[int]) -> Work:
        raise AssertionError("an exchange has no levels")

    def end(self) -> None:
        if self.inside is not None:
            self.inside.end()

    def _reduce(self, whole: Any, how: str) -> Iterator[Work]:
        if self.inside is not None:
            yield self.inside.reduce_first(whole, how)
        if self.between is not None:
            yield self.between.reduce(whole, how)
        if self.inside is not None:
            yield self.inside.spread(whole)

    def _spread(self, tensor: Any) -> Iterator[Work]:
        if self.between is not None:
            yield self.between.spread(tensor)
        if self.inside is not None:
            yield self.inside.spread(tensor)

    def _gather(self, out: Any, part: Any) -> Iterator[Work]:
        """The first member of each set gathers the parts of its set; these, padded to the largest set, are gathered between the
        sets."""
        size, n = len(part), len(self.own)
        if self.between is None:
            assert self.inside is not None
            yield self.inside.swap(part[:0], part, [0] * n, [size] + [0] * (n - 1))
        else:
            sets, most = len(self.ranks), max(map(len, self.ranks))
            room = self.blank(out, (1 + sets) * most * size)
            own, everyone = room[: most * size], room[most * size :]
            own[:size] = part
            if self.inside is not None:
                yield self.inside.swap(own[size : n * size], part[:0], [0] + [size] * (n - 1), [0] * n)
            yield self.between.gather(everyone, own)
            rows, found = out.reshape(sum(map(len, self.ranks)), size), everyone.reshape(sets, most, size)
            for i, there in enumerate(self.ranks):
                rows[list(there)] = found[i, : len(there)]
        if self.inside is not None:
            yield self.inside.spread(out)
