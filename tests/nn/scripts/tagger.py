import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        e = self.emb(x)
        y, (h, c) = self.lstm(e)
        z, h2 = self.gru(y.transpose(0, 1))
        return self.out(z.transpose(0, 1)), h, c, h2


m = Tagger()
rng = np.random.default_rng(0)
for p in m.parameters():
    with torch.no_grad():
        p.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.3))
seqs = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6]), torch.tensor([7, 8, 9])]
x = pad_sequence(seqs, batch_first=True)
y = torch.tensor(rng.integers(0, 3, (3, 4)))
y[x == 0] = -100
opt = torch.optim.Adagrad(m.parameters(), lr=0.1)
losses = []
for _ in range(3):
    opt.zero_grad()
    logits, h, c, h2 = m(x)
    loss = nn.CrossEntropyLoss()(logits.permute(0, 2, 1), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
result = dict(
    losses=losses, h=h, c=c, h2=h2, keys=list(m.state_dict()), shapes=[tuple(v.shape) for v in m.state_dict().values()]
)
