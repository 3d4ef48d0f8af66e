"""Batches that were received and sent since the last message to observers: a row or a count each, which are made events when
that message is written."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gt.dispatcher.tables import WorkerState
from gt.transport.events import Batches, Received

Row = tuple[int, float, int, int]  # serial, time, instructions, and the worker's index, or -1 for a batch that was received
NONE = 0, 0, 0  # batches, their instructions, last serial


class BatchNotes:
    """By the client's name. Rows are for observers of every batch, counts for those of a sample."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, list[Row]] = defaultdict(list)
        self.counts: dict[str, tuple[int, int, int]] = {}  # as NONE

    def clear(self) -> None:
        self.rows.clear()
        self.counts.clear()

    def take(
        self, labels: dict[str, str], workers: Mapping[int, WorkerState], now: float
    ) -> Iterator[tuple[str, Batches | Received]]:
        """Remove all and return them as events, each with its client's name, except those of unknown clients. `labels` are the
        names that observers are given of clients."""
        rows_of, self.rows = self.rows, defaultdict(list)
        for name in rows_of.keys() & labels.keys():
            columns = zip("qdii", zip(*rows_of[name]))
            serials, times, instructions, indices = [array(code, column).tobytes() for code, column in columns]
            names = {i: workers[i].name for i in {row[3] for row in rows_of[name]} if i >= 0}
            yield name, Batches(labels[name], serials, times, instructions, indices, names)
        counts, self.counts = self.counts, {}
        for name in counts.keys() & labels.keys():
            batches, n, serial = counts[name]
            yield name, Received(labels[name], serial, now, n, batches)
