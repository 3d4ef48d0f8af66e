import copy
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


# low-rank adapters put into a trained model, layers exchanged by name, checkpoints renamed
class LoRA(nn.Module):
    def __init__(self, in_dim, out_dim, rank, alpha):
        super().__init__()
        self.A = nn.Parameter(torch.empty(in_dim, rank))
        nn.init.kaiming_uniform_(self.A, a=5**0.5)
        self.B = nn.Parameter(torch.zeros(rank, out_dim))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.scaling * (x @ self.A @ self.B)


class WithLoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear
        self.lora = LoRA(linear.in_features, linear.out_features, rank, alpha)

    def forward(self, x):
        return self.linear(x) + self.lora(x)


def exchange(model, rank, alpha):
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            setattr(model, name, WithLoRA(module, rank, alpha))
        else:
            exchange(module, rank, alpha)


def settle(model, seed):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.2, dtype=torch.float32))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)) for _ in range(2)])
        self.heads = nn.ModuleDict({"next": nn.Linear(6, 10, bias=False), "value": nn.Linear(6, 1)})
        self.heads["next"].weight = self.emb.weight

    def forward(self, idx):
        x = self.emb(idx)
        for block in self.blocks:
            x = x + block(x)
        return self.heads["next"](x), self.heads["value"](x).squeeze(-1)


model = Net()
settle(model, 0)
before = copy.deepcopy(model)
kept = {k.replace("blocks.", "layers."): v for k, v in model.state_dict().items() if not k.startswith("heads.value")}
renamed = OrderedDict((k.replace("layers.", "blocks."), v) for k, v in kept.items())
loaded = model.load_state_dict(renamed, strict=False)
for p in model.parameters():
    p.requires_grad = False
exchange(model, rank=2, alpha=4)
model.emb.weight.requires_grad_(True)
settle(model, 1)
ids = torch.tensor(np.random.default_rng(2).integers(0, 10, (3, 5)))
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trainable, lr=1e-2)
losses = []
for _ in range(3):
    logits, value = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + value.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
model.blocks[0].norm = nn.LayerNorm(6)
setattr(model.blocks[1], "1", nn.GELU())
with torch.no_grad():
    after = model(ids)[0]
    old = before(ids)[0]
result = dict(
    losses=losses,
    missing=loaded.missing_keys,
    names=list(model.state_dict()),
    count=sum(p.numel() for p in trainable),
    text=repr(model),
    after=after,
    old=old,
    tied=before.heads["next"].weight is before.emb.weight,
    report=f"{loss:.4f} after {len(losses)} steps",
)
