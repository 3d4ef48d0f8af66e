import copy
import io

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler


def build():
    m = nn.Sequential()
    m.add_module("body", nn.Sequential(nn.Linear(6, 8), nn.Tanh()))
    m.add_module("head", nn.Linear(8, 3))
    rng = np.random.default_rng(0)
    for p in m.parameters():
        with torch.no_grad():
            p.copy_(torch.tensor(rng.standard_normal(tuple(p.shape))))
    return m


def optimizer(m):
    decay = [p for n, p in m.named_parameters() if p.dim() > 1]
    plain = [p for n, p in m.named_parameters() if p.dim() <= 1]
    return optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 5e-3}], lr=1e-2)


rng = np.random.default_rng(3)
X = torch.tensor(rng.standard_normal((10, 6)), dtype=torch.float32)
Y = torch.tensor(rng.integers(0, 3, 10))


def run(m, opt, sched, n):
    found = []
    for _ in range(n):
        opt.zero_grad()
        loss = nn.CrossEntropyLoss()(m(X), Y)
        loss.backward()
        opt.step()
        sched.step()
        found.append((loss.item(), [g["lr"] for g in opt.param_groups]))
    return found


m = build()
opt = optimizer(m)
sched = lr_scheduler.OneCycleLR(opt, max_lr=[0.05, 0.02], total_steps=12)
a = run(m, opt, sched, 4)
state = {"model": m.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "epoch": 4}
buffer = io.BytesIO()
torch.save(m.state_dict(), buffer)
buffer.seek(0)
m2 = build()
m2.load_state_dict(torch.load(buffer))
opt2 = optimizer(m2)
sched2 = lr_scheduler.OneCycleLR(opt2, max_lr=[0.05, 0.02], total_steps=12)
opt2.load_state_dict(copy.deepcopy(state["opt"]))
sched2.load_state_dict(state["sched"])
b, c = run(m, opt, sched, 3), run(m2, opt2, sched2, 3)
ema = copy.deepcopy(m)
with torch.no_grad():
    for pe, p in zip(ema.parameters(), m2.parameters()):
        pe.mul_(0.9).add_(p, alpha=0.1)
ema.requires_grad_(False)
sgd = optim.SGD(m.parameters(), lr=0.1)
sgd.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 1.0})
seq = lr_scheduler.SequentialLR(
    sgd, [lr_scheduler.LinearLR(sgd, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(sgd, 5)], milestones=[3]
)
lrs = []
for _ in range(7):
    sgd.step()
    seq.step()
    lrs.append([g["lr"] for g in sgd.param_groups])
pl = lr_scheduler.ReduceLROnPlateau(sgd, "min", factor=0.5, patience=1)
for v in (1.0, 1.1, 1.2, 1.3):
    pl.step(v)
missing = m.load_state_dict({"head.weight": torch.zeros(3, 8)}, strict=False)
names = sorted(opt.state_dict()["state"][0])
result = dict(
    a=a,
    b=b,
    c=c,
    lrs=lrs,
    last=[g["lr"] for g in sgd.param_groups],
    missing=sorted(missing.missing_keys),
    names=names,
    groups=opt.state_dict()["param_groups"][1]["params"],
    ema=[p for p in ema.parameters()],
)
