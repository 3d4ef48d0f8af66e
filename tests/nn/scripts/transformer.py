import math

import numpy as np
import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.0, max_len: int = 50):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class Model(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers):
        super().__init__()
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, 0.0)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.linear.bias.data.zero_()
        self.linear.weight.data.uniform_(-initrange, initrange)

    def forward(self, src, src_mask=None):
        src = self.embedding(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        output = self.transformer_encoder(src, src_mask)
        return self.linear(output)


model = Model(40, 16, 2, 32, 2)
rng = np.random.default_rng(0)
for p in model.parameters():
    p.data.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.2))
data = torch.tensor(rng.integers(0, 40, (7, 4)), dtype=torch.long)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) ** -0.5, (s + 1) * 4**-1.5))
losses = []
for step in range(4):
    model.train()
    out = model(data[:-1])
    loss = nn.functional.cross_entropy(out.view(-1, 40), data[1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    losses.append(math.exp(loss.item()))
mha = nn.MultiheadAttention(16, 4, batch_first=True)
for p in mha.parameters():
    p.data.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.2))
q = torch.tensor(rng.standard_normal((2, 5, 16)), dtype=torch.float32, requires_grad=True)
padmask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
y, w = mha(q, q, q, key_padding_mask=padmask, need_weights=True, average_attn_weights=False)
(y**2).sum().backward()
result = dict(losses=losses, y=y, w=w, g=q.grad, lr=optimizer.param_groups[0]["lr"], keys=list(model.state_dict()))
