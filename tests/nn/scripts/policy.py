from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical, Normal, kl_divergence

# policy gradients with a value: log-probabilities of an episode, weighted by its returns
Saved = namedtuple("Saved", ["log_prob", "value"])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


rng = np.random.default_rng(0)
model = Policy()
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32)) * 0.3)
optimizer = optim.Adam(model.parameters(), lr=3e-2)
eps = np.finfo(np.float32).eps.item()
running, history = 10, []
for episode in range(2):
    for t in range(6):
        state = torch.from_numpy(rng.standard_normal(4)).float()
        probs, value = model(state)
        m = Categorical(probs)
        assert m.sample().item() in (0, 1)
        action = torch.tensor(t % 2)
        model.saved.append(Saved(m.log_prob(action), value))
        model.rewards.append(float(t == 5) + 0.1 * action.item())
    R, returns, policy_losses, value_losses = 0, [], [], []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for (log_prob, value), R in zip(model.saved, returns):
        policy_losses.append(-log_prob * (R - value.item()))
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum() - 0.01 * m.entropy()
    loss.backward()
    optimizer.step()
    running = 0.05 * sum(model.rewards) + 0.95 * running
    history.append(loss.item())
    del model.rewards[:], model.saved[:]

# clipped ratios and a penalty of the distance between policies
old, new = Normal(torch.zeros(3), torch.ones(3)), Normal(torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.1, 0.9, 1.0]))
acts = torch.tensor([0.5, -1.0, 0.2])
ratio = (new.log_prob(acts) - old.log_prob(acts)).exp()
adv = torch.tensor([1.0, -1.0, 0.5])
clipped = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
result = dict(history=history, running=running, clipped=clipped, kl=kl_divergence(old, new), probs=m.probs)
