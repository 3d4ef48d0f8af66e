"""Messages of peers about collectives that have not begun here yet. Each peer may be ahead of this worker, but only so far: its
messages beyond the limits are refused, so that a faulty peer fills no memory."""

from __future__ import annotations

from gt.errors import ProtocolError
from gt.transport.messages import InputFailed, Ways
from gt.worker.client_values import Broken
from gt.worker.collectives.aborts import Key, Members

GROUPS = 1 << 10  # most groups that one peer announces and that have not begun here
FAILURES = 1 << 10  # most failed inputs of one peer in collectives of one group that have not ended here
TEXT = 1 << 14  # most characters kept of the text of a failure


def cause_of(error: str, text: str, tensor: int) -> Broken:
    """A peer's failure, as results of this worker carry it."""
    return Broken(error[:TEXT], text[:TEXT], tensor)


class EarlyWords:
    def __init__(self) -> None:
        self.ways: dict[int, dict[Members, Ways]] = {}  # of groups that have not begun here, by peer
        self.failures: dict[tuple[Members, int], dict[int, Broken]] = {}  # by group and peer, then by number

    def announce(self, word: Ways) -> None:
        kept = self.ways.setdefault(word.sender, {})
        if word.group not in kept and len(kept) >= GROUPS:
            raise ProtocolError(f"worker {word.sender} announced more than {GROUPS} groups that have not begun here")
        kept[word.group] = word

    def announced(self, members: Members) -> list[Ways]:
        return [self.ways[m][members] for m in members if members in self.ways.get(m, {})]

    def begin(self, members: Members) -> list[Ways]:
        """The announcements of a group that begins here."""
        found = self.announced(members)
        for word in found:
            del self.ways[word.sender][members]
        return found

    def fail(self, word: InputFailed) -> None:
        kept = self.failures.setdefault((word.group, word.sender), {})
        if word.number not in kept and len(kept) >= FAILURES:
            raise ProtocolError(
                f"worker {word.sender} told of more than {FAILURES} failed inputs in collectives that have not begun here"
            )
        kept[word.number] = cause_of(word.error, word.text, word.tensor)

    def failure(self, key: Key) -> Broken | None:
        """The cause if a peer's input of a collective failed."""
        members, number = key
        found = (self.failures.get((members, m), {}).get(number) for m in members) if self.failures else ()
        return next((cause for cause in found if cause is not None), None)

    def ended(self, members: Members, number: int) -> None:
        """The collectives of this group before this number have ended."""
        for m in members if self.failures else ():
            if (kept := self.failures.get((members, m))) is not None:
                for past in [n for n in kept if n < number]:
                    del kept[past]
                if not kept:
                    del self.failures[members, m]

    def meet(self, living: set[int]) -> None:
        """Drop messages about lost workers."""
        self.ways = {
            sender: {members: word for members, word in kept.items() if living.issuperset(members)}
            for sender, kept in self.ways.items() if sender in living
        }  # fmt: skip
        self.failures = {of: kept for of, kept in self.failures.items() if living.issuperset(of[0])}
