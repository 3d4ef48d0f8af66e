import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

text = "the quick brown fox jumps over the lazy dog " * 8
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
n = int(0.9 * len(data))
train, val = data[:n], data[n:]
block = 5
ix = torch.from_numpy(np.random.default_rng(0).integers(0, len(train) - block, 16))


def get_batch():
    x = torch.stack([train[i : i + block] for i in ix])
    y = torch.stack([train[i + 1 : i + block + 1] for i in ix])
    return x, y


class Char(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(chars), 12)
        self.pos = nn.Embedding(block, 12)
        self.cell = nn.GRUCell(12, 20)
        self.norm = nn.LayerNorm(20)
        self.head = nn.Linear(20, len(chars))
        self.register_buffer("tril", torch.tril(torch.ones(block, block)))

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.tok(idx) + self.pos(torch.arange(T, device=idx.device))
        wei = torch.zeros(T, T).masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        x = F.softmax(wei, dim=-1) @ x
        h = torch.zeros(B, 20)
        hs = []
        for t in range(T):
            h = self.cell(x[:, t], h)
            hs.append(h)
        logits = self.head(self.norm(torch.stack(hs, dim=1)))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        return logits, F.cross_entropy(logits.view(B * T, C), targets.view(B * T))

    @torch.no_grad()
    def generate(self, idx, k):
        for _ in range(k):
            logits, _ = self(idx[:, -block:])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            nxt = torch.topk(probs, 1, dim=-1)[1]
            idx = torch.cat((idx, nxt), dim=1)
        return idx


m = Char()
rng = np.random.default_rng(2)
for name, p in m.named_parameters():
    with torch.no_grad():
        p.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)), dtype=torch.float32) * 0.2)
opt = torch.optim.Adam(m.parameters(), lr=3e-2)
losses = []
for it in range(8):
    xb, yb = get_batch()
    logits, loss = m(xb, yb)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    losses.append(loss.item())
out = m.generate(torch.zeros((1, 1), dtype=torch.long), 12)[0].tolist()
result = dict(losses=losses, text="".join(chars[i] for i in out))
