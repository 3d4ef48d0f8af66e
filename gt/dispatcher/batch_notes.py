"""Batches that were received and sent since the last message to observers: a row or a count each, which are made events when
that message is written."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gt.dispatcher.tables import WorkerState
from gt.program.code import count_work
from gt.transport.events import Batches, Received

# Serial, time, instructions or their number, and the worker's index, or -1 for a batch that was received.
Row = tuple[int, float, list[Any] | int, int]
NONE = 0, 0, 0  # batches, their instructions, last serial
FEW = 64  # instructions of a batch that are counted when the rows are taken: between two batches the code that counts is cold


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
            serials, times, code, indices = zip(*rows_of[name])
            instructions = [each if type(each) is int else count_work(each) for each in code]
            columns = zip("qdii", (serials, times, instructions, indices))
            first, second, third, fourth = [array(typecode, column).tobytes() for typecode, column in columns]
            names = {i: workers[i].name for i in set(indices) if i >= 0}
            yield name, Batches(labels[name], first, second, third, fourth, names)
        counts, self.counts = self.counts, {}
        for name in counts.keys() & labels.keys():
            batches, n, serial = counts[name]
            yield name, Received(labels[name], serial, now, n, batches)
