"""A pipeline: two stages on two workers. Micro-batches follow one another, and the stages work at the same time, because
nobody waits before a value is read: all micro-batches are asked for first, then the gradients of their sum.

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
    with gt.debug.record() as timeline:
        for _ in range(4):  # micro-batches
            with gt.signal("stage_1"):
                h = first(gt.randn(2048, 64)).relu()
            with gt.signal("stage_2"):
                total = (second(h) ** 2).mean() / 4 + total
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    both = timeline.together(0, 1) * 1e3
    print(f"step {step}: loss {total.item():.4f}, h on {h.placement.workers}, both workers busy for {both:.1f} ms")
