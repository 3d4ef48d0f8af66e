"""Capture files: the event messages of a run in the order of their arrival, for tools that analyse the run later."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gt.errors import GTError, ProtocolError
from gt.transport.checks import reported
from gt.transport.events import BEGIN, Batches, Event, Joined, Spans, Watched
from gt.watch.events import Recording, since

MAGIC = b"GT capture 1\n"
MAX_MESSAGE_BYTES = 256 << 20  # most bytes of one message

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Watched).decode


class CaptureFile:
    """Writes messages to a new file."""

    def __init__(self, path: str | Path) -> None:
        self.file = open(path, "wb")  # noqa: SIM115 (closed with the object)
        self.file.write(MAGIC)

    def write(self, watched: Watched) -> None:
        data = _encode(watched)
        self.file.write(len(data).to_bytes(4, "big"))
        self.file.write(data)

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> CaptureFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def messages(path: str | Path) -> Iterator[Watched]:
    """The messages of a capture. A truncated file yields the messages before the truncated one."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise GTError(f"{path} is not a capture of `gt trace`")
        while len(size := file.read(4)) == 4:
            n = int.from_bytes(size, "big")
            data = file.read(n) if n <= MAX_MESSAGE_BYTES else b""
            if len(data) != n:
                return
            try:
                found = _decode(data)
                for event in found.events:
                    reported(event)
            except (msgspec.MsgspecError, ProtocolError) as wrong:
                raise GTError(f"{path} is damaged: {wrong}") from wrong
            yield found


def read(path: str | Path) -> Recording:
    """The recording in a capture. Work that had begun before is drawn from the capture's beginning: an observer is first sent
    who is there, with the time."""
    recording = Recording()
    for watched in messages(path):
        recording.add(watched.events, watched.dropped)
    first = recording.items[0] if recording.items else None
    if isinstance(first, Joined):
        recording.items = [since(item, first.at) for item in recording.items]
    return recording


def count(watched: Watched) -> int:
    """The number of events in a message; each recorded instruction, and each batch received or sent, counts as one."""
    return sum(_rows(e) for e in watched.events)


def _rows(event: Event) -> int:
    if isinstance(event, Batches):
        return len(event.serials) // 8
    if not isinstance(event, Spans):
        return 1
    numbers = array("q", event.numbers)
    return len(numbers) - numbers.count(BEGIN)
