"""How many instructions a client sends together. A message costs the processes that it passes about as much as some ten
instructions, and workers are idle until the first one and behind the last: so the first batches are short, later ones longer,
and, where a read comes as often as before, the last ones short again."""

from __future__ import annotations

BATCH = 256  # instructions of the first batch of a burst
MORE = 1024  # most instructions of later batches, each twice as long as the one before: fewer messages cost less
STEP = 32  # instructions behind which a load sends them, at the start of a burst, as the workers are idle; later twice as many


class BatchLengths:
    """`most` instructions are sent at once, `step` or more when a load begins the next step."""

    __slots__ = ("most", "step", "read_at", "span")

    def __init__(self) -> None:
        self.most, self.step = BATCH, STEP
        self.read_at = self.span = 0  # instructions written until the last read, and between the two before

    def begin(self) -> None:
        """A burst begins."""
        self.most, self.step = BATCH, STEP

    def lengthen(self, times: int, written: int) -> None:
        """Later batches are so many times as long, except before the next read: workers have little left to do when the client
        begins to wait for it."""
        self.most, self.step = min(MORE, times * self.most), times * self.step
        left = self.span - (written - self.read_at)  # until the next read, if it comes where the last one did
        if left > 0:
            self.step = max(STEP, min(self.step, left // 2))

    def read(self, written: int) -> None:
        """A read was sent."""
        since, self.read_at = written - self.read_at, written
        if since >= STEP:  # not the second of two in a row
            self.span = since
