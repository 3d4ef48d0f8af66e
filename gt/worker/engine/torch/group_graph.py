"""Traces with collectives as CUDA graphs: NCCL's kernels are in the graph, on a stream of their own, and overlap with kernels
that do not need their results. When to capture and when to replay is agreed with the other workers: see
`gt.worker.programs.group_recordings`."""

from __future__ import annotations

from typing import Any

import torch

from gt.worker.engine.torch.cuda_graph import HOT, Graph
from gt.worker.engine.torch.graph_function import capturable
from gt.worker.programs.group_recordings import NEVER, NOT_NOW, RECORD, GroupPeers
from gt.worker.programs.passes.early_collectives import in_buckets

MOST = 8  # captures of one trace


class GroupGraph(Graph):
    """`program` is the worker's ShardedTrace."""

    may_repeat = shares = False

    def __init__(self, program: Any, engine: Any, collectives: GroupPeers, group: tuple[int, ...]) -> None:
        super().__init__(program, engine)
        self.collectives, self.group = collectives, group
        self.recorder: Any = None  # of the capture

    def wish(self, call: tuple) -> int:
        program, table = self.program, self.program.space.table
        ids = call[program.encoding.inputs]
        if program.failed or self.captures >= MOST:
            return NEVER
        if not all(isinstance(table.get(i), torch.Tensor) for i in ids):
            return NOT_NOW  # failed, or in host memory
        recorder = self.collectives.recorder(self.group)
        if recorder is not self.recorder:
            self.release()  # its communicator was aborted
            self.recorder = recorder
        if recorder is None:
            return NOT_NOW
        if not self.recordings:
            if self.calls < HOT:
                self._watch(table, ids, call[program.encoding.results])
                self.calls += 1
            return RECORD if self.calls >= HOT else NOT_NOW
        varied = [i for i, id in enumerate(ids) if self.fixed[i] and table[id] is not self.statics[i]]
        for i in varied:
            self.fixed[i] = False
        return RECORD if varied else RECORD + self.captures

    def prepare(self, call: tuple) -> None:
        encoding, table = self.program.encoding, self.program.space.table
        self.engine.streams.use(self.program.space.client)
        while self.recordings:
            self.recordings.pop().clone_lent(table, [])
        self.recorder.graphs.add(self)
        program = in_buckets(self.program.program)
        kernels = {n: self.recorder(kind) for n, kind in program.kinds.items() if kind.row.collective}
        self.function = capturable(program, self.program.kinds, self.engine, stage=self.program.stage, collectives=kernels)
        try:
            self._prepare([table[i] for i in call[encoding.inputs]], call[encoding.given])
        except RuntimeError as refused:
            self._not_captured(refused)
            raise

    def record(self, call: tuple) -> None:
        self.engine.streams.use(self.program.space.client)
        try:
            self._record()
        except RuntimeError as refused:  # CUDA's error for an op that cannot be captured
            self._not_captured(refused)
            raise

    def replay(self, call: tuple) -> list[torch.Tensor]:
        program, table = self.program, self.program.space.table
        encoding = program.encoding
        self.engine.streams.use(program.space.client)
        ids = call[encoding.inputs]
        self._replay(table, call, ids, call[encoding.given])
        for i in program.dies:
            program.space.specs.pop(call[i], None)
        return [table[id] for id in call[encoding.results]]

    def running(self) -> bool:
        return bool(self.engine.streams.running(self.program.space.client))

    def stats(self) -> dict[str, float]:
        return {**super().stats(), "collective_graph_calls": self.runs}
