import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
for p in net.parameters():
    with torch.no_grad():
        p.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.2))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
X = torch.tensor(rng.standard_normal((24, 16)), dtype=torch.float32)
Y = torch.tensor(rng.standard_normal((24, 4)), dtype=torch.float32)
losses, kinds, scales = [], [], []
for step in range(5):
    opt.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        out = net(X)
        kinds.append(str(out.dtype).split(".")[-1])
        loss = nn.functional.mse_loss(out.float(), Y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
    scaler.step(opt)
    scaler.update()
    losses.append(loss.item())
    scales.append(scaler.get_scale())
opt.zero_grad()
bad = net(X).sum() * float("inf")
scaler.scale(bad).backward()
scaler.step(opt)
scaler.update()
half = net.to(torch.bfloat16)
result = dict(
    losses=torch.tensor(losses).round(decimals=2),
    kinds=kinds,
    scales=scales,
    after=scaler.get_scale(),
    kind=str(half[0].weight.dtype).split(".")[-1],
)
