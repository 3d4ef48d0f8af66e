"""Batches that were received and sent since the last message to observers: a row or a count each, which are made events when
that message is written."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gt.dispatcher.tables import WorkerState
from gt.program.code import count_work
from gt.transport.events import Batches, Received
from gt.transport.messages import Batch, Mail

Counted = tuple[int, float, int, list[tuple[str, int]]]  # serial, time, instructions, and peer and length of each part
NONE = 0, 0, 0  # batches, their instructions, last serial
FEW = 64  # instructions of a batch that are counted when it is told: between two batches the code that counts is cold


def counted(batch: Batch, at: float, runs: list[Mail]) -> Counted:
    """A batch that was received at some time, and its parts that were sent to workers."""
    return batch.serial, at, count_work(batch.code), [(mail.peer, len(mail.message.code)) for mail in runs]


class BatchNotes:
    """By the client's name. Rows are for observers of every batch, counts for those of a sample."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, list[Counted | tuple[Batch, float, list[Mail]]]] = defaultdict(list)
        self.counts: dict[str, tuple[int, int, int]] = {}  # as NONE

    def clear(self) -> None:
        self.rows.clear()
        self.counts.clear()

    def take(
        self, labels: dict[str, str], by_peer: Mapping[str, WorkerState], now: float
    ) -> Iterator[tuple[str, Batches | Received]]:
        """Remove all and return them as events, each with its client's name, except those of unknown clients. `labels` are the
        names that observers are given of clients."""
        rows_of, self.rows = self.rows, defaultdict(list)
        for name in rows_of.keys() & labels.keys():
            rows, names = list[tuple[int, float, int, int]](), dict[int, str]()
            for row in rows_of[name]:
                serial, at, instructions, runs = row if len(row) == 4 else counted(*row)
                rows.append((serial, at, instructions, -1))
                for peer, length in runs:
                    worker = by_peer[peer]
                    names[worker.index] = worker.name
                    rows.append((serial, at, length, worker.index))
            serials, times, lengths, indices = [array(code, column).tobytes() for code, column in zip("qdii", zip(*rows))]
            yield name, Batches(labels[name], serials, times, lengths, indices, names)
        counts, self.counts = self.counts, {}
        for name in counts.keys() & labels.keys():
            batches, n, serial = counts[name]
            yield name, Received(labels[name], serial, now, n, batches)
