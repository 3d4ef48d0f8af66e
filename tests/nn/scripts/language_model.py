import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


# a recurrent language model, trained over cut-off histories by hand-written steps
class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, tie_weights=False):
        super().__init__()
        self.ntoken, self.rnn_type, self.nhid, self.nlayers = ntoken, rnn_type, nhid, nlayers
        self.drop = nn.Dropout(0.0)
        self.encoder = nn.Embedding(ntoken, ninp)
        if rnn_type in ["LSTM", "GRU"]:
            self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=0.0)
        else:
            self.rnn = nn.RNN(ninp, nhid, nlayers, nonlinearity={"RNN_TANH": "tanh", "RNN_RELU": "relu"}[rnn_type])
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        self.init_weights()

    def init_weights(self):
        rng = np.random.default_rng(0)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        for p in self.parameters():
            p.data.copy_(torch.tensor(rng.standard_normal(tuple(p.shape)) * 0.2))

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        made = [weight.new_zeros(self.nlayers, bsz, self.nhid) for _ in range(2)]
        return tuple(made) if self.rnn_type == "LSTM" else made[0]


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


ids = torch.tensor(np.random.default_rng(1).integers(0, 11, 44)).type(torch.int64)
data = batchify(ids, 4)
found = {}
for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU"):
    model = RNNModel(kind, 11, 6, 6, 2, tie_weights=True)
    criterion, lr, total, hidden = nn.NLLLoss(), 1.0, 0.0, model.init_hidden(4)
    model.train()
    for i in range(0, data.size(0) - 1, 5):
        inputs, targets = get_batch(data, i, 5)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(inputs, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item() * len(inputs)
    model.eval()
    words = torch.tensor([[3]])
    hidden = model.init_hidden(1)
    said = []
    with torch.no_grad():
        for _ in range(4):
            output, hidden = model(words, hidden)
            word = output.squeeze().div(0.8).exp().cpu().argmax()
            words.fill_(word)
            said.append(word.item())
    mean = total / (len(data) - 1)
    found[kind] = (mean, said, f"| loss {mean:5.2f} | ppl {math.exp(mean):8.2f}", len(list(model.parameters())))
result = found
