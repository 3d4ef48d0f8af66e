"""Scripts in which replay could confuse two values give the same bits with it and without."""

from __future__ import annotations

import json

import pytest
from processes import Processes

SCRIPT = """
import json, sys, threading
import numpy as np, gt
from gt.client.here import here
gt.connect(sys.argv[1])

def model(seed, width):
    draw = np.random.default_rng(seed)
    w, v = (gt.tensor(draw.normal(size=s).astype("f4") / 4, requires_grad=True) for s in ((6, width), (width, 3)))
    x, y = (gt.tensor(draw.normal(size=s).astype("f4")) for s in ((8, 6), (8, 3)))
    optimizer = gt.optim.AdamW([w, v], lr=0.02)

    def step(i):
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + i)
        hidden = (x @ w).tanh() if i % 7 else (x @ w).relu()  # now and then another branch
        loss = ((hidden @ v - y) ** 2).mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        return loss

    return step

found = {}
def train(name, step, n=40):
    kept = [step(i) for i in range(n)]
    found[name] = [loss.item() for loss in kept]

steps = [model(1, 5), model(2, 5), model(3, 9)]
kept = [step(i) for i in range(30) for step in steps]  # several models, in turn
found["in turn"] = [loss.item() for loss in kept]
threads = [threading.Thread(target=train, args=(f"thread {n}", model(10 + n, 5 + n % 2))) for n in range(3)]
for t in threads: t.start()
for t in threads: t.join()
train("alone", model(10, 5))
assert found["alone"] == found["thread 0"]
tracer = here().session.tracer
print(json.dumps(found, sort_keys=True)); print(tracer.hits if tracer else -1)
"""


@pytest.mark.default("GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE")  # compiled code does not round to the same bits
@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_models_in_turn_and_in_threads(processes: Processes, backend: str) -> None:
    outs = []
    for trace in ("1", "0"):
        script = processes.script(SCRIPT, processes.pool(1, backend), GT_TRACE=trace)
        assert script.ended(60) == 0, script.err[-3000:]
        outs.append(script.out.splitlines())
    assert json.loads(outs[0][0]) == json.loads(outs[1][0])
    assert int(outs[0][1]) > 60 and outs[1][1] == "-1"  # most of the steps in turn are called, at the least
