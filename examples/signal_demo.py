"""Signals: the same program on one worker or on two, by config_sharding.yaml.

python examples/signal_demo.py
"""

from pathlib import Path

import gt
from gt.nn import SGD, Linear, Module

gt.gpu_workers(2)
gt.load_config(Path(__file__).parent / "config_sharding.yaml")
gt.manual_seed(0)


class MLP(Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = Linear(32, 64), Linear(64, 8)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


with gt.signal.context("parameters"):
    model = MLP()
optimizer = SGD(model.parameters(), lr=0.1)

with gt.signal.context("batch"):
    x, y = gt.randn(128, 32), gt.randn(128, 8)
print("x lies as", x.placement)

for step in range(5):
    with gt.signal.context("batch"):
        loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")

print("fc1's weight lies as", model.fc1.weight.placement)
gt.debug.placement(gt.signal.tensor(x, name="columns"))
