"""Loops with an environment in Python: a policy that is asked for each action, and PPO."""

from __future__ import annotations

from typing import Any

import numpy as np
from loops import Loop, Setting, Steps

SEEN, ACTIONS = 8, 4


def _net(lib: Any, wide: int) -> Any:
    nn = lib.nn

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(SEEN, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh())
            self.act, self.value = nn.Linear(wide, ACTIONS), nn.Linear(wide, 1)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.act(h), self.value(h).squeeze(-1)

    return Policy()


class Environment:
    """`count` points that are to be driven to zero by one of four actions each."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.state = rng.standard_normal((count, SEEN)).astype(np.float32)
        self.moves = (0.1 * rng.standard_normal((ACTIONS, SEEN))).astype(np.float32)

    def step(self, actions: np.ndarray) -> np.ndarray:
        self.state = np.clip(0.99 * self.state + self.moves[actions], -3, 3)
        return -(self.state**2).mean(-1)


def policy(at: Setting) -> Steps:
    """One observation in, one action out, as an agent plays."""
    model = at.model(lambda lib: _net(lib, at.pick(64, 32)))
    environment = Environment(1, at.rng)
    best = at.compiled(lambda x: model(x)[0].argmax(-1))

    def steps(n: int) -> list[float]:
        rewards = []
        with at.lib.no_grad():
            for _ in range(n):
                action = best(at.put(environment.state)).item()
                rewards.append(float(environment.step(np.array([action]))[0]))
        return rewards

    return steps


def ppo(at: Setting) -> Steps:
    """A step: 16 actions of 16 environments, then two passes over them in batches with the clipped objective; Adam."""
    lib = at.lib
    model = at.model(lambda lib: _net(lib, at.pick(64, 32)))
    optimizer = lib.optim.Adam(model.parameters(), lr=3e-4)
    environment, count, horizon = Environment(16, at.rng), 16, 16
    ask = at.compiled(lambda x: model(x))

    def objective(x: Any, action: Any, old: Any, advantage: Any, target: Any) -> Any:
        logits, value = model(x)
        logp = logits.log_softmax(-1)
        ratio = (logp.gather(1, action[:, None]).squeeze(1) - old).exp()
        gained = lib.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        return -gained + 0.5 * ((value - target) ** 2).mean() - 0.01 * entropy

    loss_of = at.compiled(objective)

    def played() -> list[np.ndarray]:
        rows = []
        with lib.no_grad():
            for _ in range(horizon):
                logits, value = ask(at.put(environment.state))
                logits, value = logits.cpu().numpy(), value.cpu().numpy()
                logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                action = (logp + at.rng.gumbel(size=logp.shape)).argmax(-1)
                seen = environment.state
                rows.append((seen, action, logp[np.arange(count), action], value, environment.step(action)))
        x, action, old, value, reward = (np.stack(part) for part in zip(*rows))
        gained, target = np.zeros(count, np.float32), np.zeros_like(value)
        for t in range(horizon - 1, -1, -1):
            gained = target[t] = reward[t] + 0.95 * gained
        advantage = target - value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        return [a.reshape(-1, *a.shape[2:]) for a in (x, action, old, advantage, target)]

    def steps(n: int) -> list[float]:
        losses = []
        for _ in range(n):
            rollout = played()
            for _ in range(2):
                order = at.rng.permutation(count * horizon).reshape(4, -1)
                for rows in order:
                    loss = loss_of(*(at.put(np.ascontiguousarray(a[rows])) for a in rollout))
                    optimizer.zero_grad()
                    loss.backward()
                    lib.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
            losses.append(loss.item())
        return losses

    return steps


READS = "a read waits for other processes; eager computes in the caller's own, policy's step in less time than one such wait"
ALONE = "the answer is computed here, but the client's Python for a load, nine ops and a read takes as long as eager's kernels"
TURNS = "client and worker take turns in 17 reads, so that their times add up; the worker's is a quarter of eager's step"
LOOPS = {
    "policy": Loop(policy, steps=200, reads=1, why_on_gpu=READS, why_on_cpu=ALONE),
    # another action changes all later states
    "ppo": Loop(ppo, steps=4, compare=2, tolerance=2e-2, reads=17, why_on_gpu=READS, why_on_cpu=TURNS),
}
