import numpy as np
import torch
import torch.nn.functional as F

# bigram counts, then a small network with batch norm, both by tensors alone
rng = np.random.default_rng(0)
X = torch.tensor(rng.integers(0, 9, (24, 3)))
Y = torch.tensor(rng.integers(0, 9, 24))
N = torch.zeros((9, 9), dtype=torch.int32)
for a, b in zip(X[:, 0], X[:, 1]):
    N[a, b] += 1
P = (N + 1).float()
P /= P.sum(1, keepdims=True)
nll = -P[X[:, 0], X[:, 1]].log().mean()

C, W1, W2 = (torch.tensor(rng.standard_normal(s)).float() * k for s, k in (((9, 4), 1), ((12, 10), 0.5), ((10, 9), 0.1)))
b2, gain, bias, running = torch.zeros(9), torch.ones((1, 10)), torch.zeros((1, 10)), torch.zeros((1, 10))
parameters = [C, W1, W2, b2, gain, bias]
for p in parameters:
    p.requires_grad = True
lines, ratios = [], []
for i in range(4):
    emb = C[X]
    pre = emb.view(emb.shape[0], -1) @ W1
    mean, std = pre.mean(0, keepdim=True), pre.std(0, keepdim=True)
    pre = gain * (pre - mean) / std + bias
    with torch.no_grad():
        running = 0.9 * running + 0.1 * mean
    h = torch.tanh(pre)
    h.retain_grad()
    logits = h @ W2 + b2
    loss = F.cross_entropy(logits, Y)
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.1 * p.grad
    lines.append(f"{i:7d}/{4:7d}: {loss.item():.4f} {(h.abs() > 0.97).float().mean():.3f}")
    with torch.no_grad():
        ratios.append([(0.1 * p.grad.std() / p.data.std()).log10().item() for p in (W1, W2)])

dlogits = F.softmax(logits, 1)
dlogits[range(24), Y] -= 1
dlogits /= 24
dh = dlogits @ W2.T
dW2 = h.T @ dlogits
close = torch.allclose(h.grad, dh, atol=0.1), (dW2 - W2.grad).abs().max().item() < 1e-5
onehot = F.one_hot(X[:, 0], num_classes=9).float()
W = torch.tensor(rng.standard_normal((9, 9)), dtype=torch.float32).requires_grad_()
counts = (onehot @ W).exp()
probs = counts / counts.sum(1, keepdims=True)
ml = -probs[torch.arange(24), Y].log().mean() + 0.01 * (W**2).mean()
ml.backward()
result = dict(
    nll=nll, counts=N, P=P, lines=lines, ratios=ratios, running=running, dh=dh, close=close, ml=ml, grad=W.grad, seen=3 in X
)
