"""Stages of a pipeline on real processes work at the same time, by the times that the workers recorded."""

from __future__ import annotations

import pytest
from processes import Processes

STAGES = """
import gt
gt.gpu_workers(2)
for i in (0, 1):
    gt.register_config(f"stage_{i}", gt.SignalConfig(gt.ShardConfig(workers=[i])))
weights = []
for i in (0, 1):
    with gt.signal(f"stage_{i}"):
        weights.append(gt.randn(256, 256) / 16)

def stage(i, x):
    with gt.signal(f"stage_{i}"):
        for _ in range(12):
            x = (x @ weights[i]).tanh()
        return x

def step(serial):
    outs = []
    for _ in range(6):                 # micro-batches
        with gt.signal("stage_0"):
            x = gt.randn(256, 256)
        outs.append(stage(1, stage(0, x)).sum())
        if serial:
            outs[-1].item()            # nothing of the next is asked for before this one is done
    return [o.item() for o in outs]

step(True)                             # groups are made
for serial in (False, True):
    with gt.debug.record() as timeline:
        step(serial)
    assert timeline.workers == [0, 1], timeline.workers
    for worker in (0, 1):
        signals = {s.signal for s in timeline.spans if s.worker == worker and not s.collective}
        assert f"stage_{worker}" in signals and f"stage_{1 - worker}" not in signals, signals
    spent = [sum(stop - start for start, stop in timeline.busy(w)) for w in (0, 1)]
    print(timeline.together(0, 1) / min(spent))
"""


@pytest.mark.parametrize("backend", ["numpy", pytest.param("pytorch", marks=pytest.mark.slow)])
def test_stages_overlap_unless_the_program_waits_between_micro_batches(processes: Processes, backend: str) -> None:
    way = {"GT_COLLECTIVES": "mail"} if backend == "numpy" else {}  # which loads no PyTorch
    script = processes.script(STAGES, GT_BACKEND=backend, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **way)
    assert script.ended(200) == 0, script.err[-3000:]
    free, serial = map(float, script.out.split())
    assert serial == 0.0 < free, script.out  # how much of it depends on the machine
