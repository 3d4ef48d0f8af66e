"""Batches that were received and sent since the last message to observers: a row or a count each, which are made events when
that message is written."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping

from gt.dispatcher.tables import WorkerState
from gt.program.code import count_work
from gt.transport.events import Batches, Received
from gt.transport.messages import Batch, Mail
from gt.transport.time_stamps import TimeStamps, time_stamps

Parts = list[tuple[str, int]]  # peer and length of each part of a batch
Counted = tuple[int, int, Parts]  # serial, instructions and parts
FEW = 64  # instructions of a batch that are counted when it is told: between two batches the code that counts is cold


def counted(batch: Batch, runs: list[Mail]) -> Counted:
    """A batch, and its parts that were sent to workers."""
    return batch.serial, count_work(batch.code), [(mail.peer, len(mail.message.code)) for mail in runs]


class BatchNotes:
    """By the client's name. Rows are for observers of every batch; the sample, for observers of a sample, is told as one
    event."""

    def __init__(self) -> None:
        self.rows: dict[str, TimeStamps] = {}  # of (Batch, its runs) and Counted
        self.sample: dict[str, list[Batch | tuple[int, int]]] = {}  # of serial and instructions, where it is counted

    def clear(self) -> None:
        self.rows.clear()
        self.sample.clear()

    def add(self, client: str, batch: Batch) -> int:
        """Add to a client's sample, and return its length."""
        noted = self.sample.get(client)
        if noted is None:
            noted = self.sample[client] = []
        noted.append(batch if len(batch.code) <= FEW else (batch.serial, count_work(batch.code)))
        return len(noted)

    def rows_of(self, client: str, clock: Callable[[], float]) -> TimeStamps:
        """The rows of a client, by this clock."""
        found = self.rows[client] = time_stamps(clock)
        return found

    def take(
        self, labels: dict[str, str], by_peer: Mapping[str, WorkerState], now: float
    ) -> Iterator[tuple[str, Batches | Received]]:
        """Remove all and return them as events, each with its client's name, except those of unknown clients. `labels` are the
        names that observers are given of clients."""
        self.rows = {name: rows for name, rows in self.rows.items() if name in labels}
        for name, rows in self.rows.items():
            if len(rows):
                yield name, _batches(labels[name], rows, by_peer)
        sample, self.sample = self.sample, {}
        for name in sample.keys() & labels.keys():
            told = [each if isinstance(each, tuple) else (each.serial, count_work(each.code)) for each in sample[name]]
            yield name, Received(labels[name], told[-1][0], now, sum([n for _, n in told]), len(told))


def _batches(label: str, noted: TimeStamps, by_peer: Mapping[str, WorkerState]) -> Batches:
    """The rows of a client as an event, after which there are none."""
    entries, starts = noted.take(len(noted))
    rows, known, names = list[tuple[int, float, int, int]](), dict[str, int](), dict[int, str]()
    for entry, at in zip(entries, array("d", starts)):
        serial, instructions, parts = entry if len(entry) == 3 else counted(*entry)
        rows.append((serial, at, instructions, -1))
        for peer, length in parts:
            if peer not in known:
                worker = by_peer[peer]
                known[peer], names[worker.index] = worker.index, worker.name
            rows.append((serial, at, length, known[peer]))
    serials, times, lengths, indices = [array(code, column).tobytes() for code, column in zip("qdii", zip(*rows))]
    return Batches(label, serials, times, lengths, indices, names)
