"""A pipeline: two stages on two workers. Micro-batches follow one another, and the stages work at the same time, because
nobody waits before a value is read.

python examples/pipeline.py
"""

from pathlib import Path

import gt
from gt.nn import SGD, Linear

gt.gpu_workers(2)
gt.load_config(Path(__file__).parent / "config_sharding.yaml")
gt.manual_seed(0)

with gt.signal("stage_1"):
    first = Linear(64, 256)
with gt.signal("stage_2"):
    second = Linear(256, 8)
optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.05)

for step in range(3):
    total = 0.0
    for _ in range(4):  # micro-batches
        with gt.signal("stage_1"):
            h = first(gt.randn(32, 64)).relu()
        with gt.signal("stage_2"):
            loss = (second(h) ** 2).mean() / 4
        loss.backward()
        total = loss.detach() + total
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {total.item():.4f}, h on {h.placement.workers}, loss on {loss.placement.workers}")
