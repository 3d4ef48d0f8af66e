"""Loops of many fields, written without a look at how GT runs them, and kept as they were: filters, samplers, graphs, agents,
gradients of gradients, decoding with a growing cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from loops import Loop, Setting, Steps, training

BESIDE = (
    "the kernels take both cores, as eager's do: the client's Python comes on top, one of their threads waits for it, one spins"
)
TINY = "300 tiny ops a step: the client's Python takes as long to issue them as eager to compute them"
TURNS = "a read waits for other processes, and these come {} times a step; eager computes in the caller's own process"


def trained(make: Callable[[Any], Any], batch: Callable[..., Any], loss: Callable[..., Any]) -> Callable[[Setting], Steps]:
    """A model trained by Adam, whose loss is read every five steps. `batch(rng, large)` makes the arrays of a step."""

    def loop(at: Setting) -> Steps:
        model = at.model(make)
        optimizer = at.lib.optim.Adam(model.parameters(), lr=1e-3)
        data = at.batches(lambda rng: batch(rng, at.large))

        return training(at, data, lambda *arrays: loss(at.lib, model, *arrays), optimizer)

    return loop


def classes(lib: Any, model: Any, x: Any, y: Any) -> Any:
    return lib.nn.functional.cross_entropy(model(x), y)


def pictures(rng: np.random.Generator, large: bool) -> tuple[np.ndarray, np.ndarray]:
    size = 256 if large else 32
    return rng.standard_normal((size, 3, 32, 32), np.float32), rng.integers(0, 10, size)


def mixer(lib: Any) -> Any:
    """MLPs over patches and over channels in turn."""
    nn = lib.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_patches, self.before_channels = nn.LayerNorm(64), nn.LayerNorm(64)
            self.patches = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            self.channels = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

        def forward(self, x: Any) -> Any:
            x = x + self.patches(self.before_patches(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.before_channels(x))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 64, 8, stride=8)
            self.blocks = nn.ModuleList([Block() for _ in range(4)])
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = self.cut(x).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    return Mixer()


def encoder(lib: Any) -> Any:
    """Two convolutions with batch norm, and the mean of each channel."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64),
    )  # fmt: skip


def two_views(rng: np.random.Generator, large: bool) -> tuple[np.ndarray, np.ndarray]:
    return pictures(rng, large)[0], pictures(rng, large)[0]


def contrast(lib: Any, model: Any, one: Any, other: Any) -> Any:
    """Each picture's other view among all views."""
    F, n = lib.nn.functional, len(one)
    z = F.normalize(lib.cat([model(one), model(other)]), dim=1)
    alike = (z @ z.T / 0.5).masked_fill(lib.eye(2 * n, dtype=lib.bool, device=z.device), -1e9)
    other_views = lib.cat([lib.arange(n, 2 * n, device=z.device), lib.arange(n, device=z.device)])
    return F.cross_entropy(alike, other_views)


def signals(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(
        nn.Conv1d(4, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def recordings(rng: np.random.Generator, large: bool) -> tuple[np.ndarray, np.ndarray]:
    size = 256 if large else 32
    return rng.standard_normal((size, 4, 100), np.float32), rng.integers(0, 10, size)


def smooth(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def points(rng: np.random.Generator, large: bool) -> tuple[np.ndarray]:
    return (rng.standard_normal((4096 if large else 256, 2), np.float32),)


def burgers(lib: Any, model: Any, x: Any) -> Any:
    """How far a network is from a solution of Burgers' equation, by its derivatives."""
    x = x.requires_grad_()
    u = model(x)
    first = lib.autograd.grad(u.sum(), x, create_graph=True)[0]
    second = lib.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0][:, 0]
    return ((first[:, 1] - 0.1 * second + u[:, 0] * first[:, 0]) ** 2).mean()


def kalman(at: Setting) -> Steps:
    """A Kalman filter over 20 measurements."""
    lib = at.lib
    moves = at.put(np.eye(4, dtype=np.float32) + 0.1 * np.eye(4, k=2, dtype=np.float32))
    sees, drift, error = (at.put(a.astype(np.float32)) for a in (np.eye(2, 4), 0.01 * np.eye(4), 0.1 * np.eye(2)))
    unit, nothing = at.put(np.eye(4, dtype=np.float32)), at.put(np.zeros(4, np.float32))
    data = at.batches(lambda rng: rng.standard_normal((20, 2), np.float32))

    def steps(n: int) -> list[float]:
        read, x, p = [], nothing, unit
        for i in range(n):
            z = at.put(data(i))
            for t in range(20):
                x, p = moves @ x, moves @ p @ moves.T + drift
                gain = p @ sees.T @ lib.linalg.inv(sees @ p @ sees.T + error)
                x, p = x + gain @ (z[t] - sees @ x), (unit - gain @ sees) @ p
            if i % 5 == 4:
                read.append(x.norm().item())
        return read

    return steps


def nbody(at: Setting) -> Steps:
    """Bodies that attract one another."""
    count = at.pick(1024, 256)
    data = at.batches(lambda rng: rng.standard_normal((count, 3), np.float32))
    first = at.put(data(0))

    def steps(n: int) -> list[float]:
        q, v, read = first, at.lib.zeros_like(first), []
        for i in range(n):
            apart = q[None] - q[:, None]
            pull = (apart * (((apart**2).sum(-1) + 0.05) ** -1.5)[..., None]).mean(1)
            v = v + 0.01 * pull + 1e-4 * at.put(data(i))
            q = q + 0.01 * v
            if i % 5 == 4:
                read.append((v**2).sum().item())
        return read

    return steps


def graph(at: Setting) -> Steps:
    """Attention between the ends of a graph's edges, trained on other nodes in each step."""
    lib, F = at.lib, at.lib.nn.functional
    nodes, edges = at.pick((10_000, 100_000), (500, 3000))
    source, target = (at.put(at.rng.integers(0, nodes, edges)) for _ in range(2))
    features, zeros = at.put(at.rng.standard_normal((nodes, 64), np.float32)), at.put(np.zeros(nodes, np.float32))
    layers = at.model(lambda lib: lib.nn.ModuleList([lib.nn.Linear(64, 64), lib.nn.Linear(64, 7), lib.nn.Linear(128, 1)]))
    optimizer = lib.optim.AdamW(layers.parameters(), lr=1e-2)
    data = at.batches(lambda rng: (rng.integers(0, 7, nodes), rng.random(nodes) < 0.3))

    def convolved(layer: Any, x: Any) -> Any:
        ends = lib.cat([x[source], x[target]], 1)
        score = F.leaky_relu(layers[2](ends).squeeze(1), 0.2)
        weight = lib.exp(score - score.max())
        whole = zeros.index_add(0, target, weight)
        weight = (weight / (whole[target] + 1e-9))[:, None]
        h = layer(x)
        return lib.zeros_like(h).index_add(0, target, h[source] * weight)

    def steps(n: int) -> list[float]:
        read = []
        for i in range(n):
            y, chosen = (at.put(a) for a in data(i))
            found = convolved(layers[1], lib.relu(convolved(layers[0], features)))
            loss = F.cross_entropy(found[chosen], y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 5 == 4:
                read.append(loss.item())
        return read

    return steps


def maml(at: Setting) -> Steps:
    """Weights from which one step of gradients learns each of four tasks."""
    lib, F = at.lib, at.lib.nn.functional
    shapes = ((1, 40), (40,), (40, 40), (40,), (40, 1), (1,))
    weights = [at.put(0.3 * at.rng.standard_normal(s, np.float32)).requires_grad_() for s in shapes]
    optimizer = lib.optim.Adam(weights, lr=1e-3)
    data = at.batches(lambda rng: rng.standard_normal((4, 4, 10, 1), np.float32))

    def net(w: list[Any], x: Any) -> Any:
        return lib.relu(lib.relu(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]

    def steps(n: int) -> list[float]:
        read = []
        for i in range(n):
            tasks, total = at.put(data(i)), 0.0
            for x, y, x_after, y_after in tasks:
                gradients = lib.autograd.grad(F.mse_loss(net(weights, x), y), weights, create_graph=True)
                fast = [w - 0.01 * g for w, g in zip(weights, gradients)]
                total = total + F.mse_loss(net(fast, x_after), y_after)
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            if i % 5 == 4:
                read.append(total.item())
        return read

    return steps


def accuracy(at: Setting) -> Steps:
    """Loss and correct answers read in every step, as progress bars show them."""
    lib, wide = at.lib, at.pick(1024, 256)
    model = at.model(lambda lib: lib.nn.Sequential(lib.nn.Linear(784, wide), lib.nn.ReLU(), lib.nn.Linear(wide, 10)))
    optimizer = lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = at.batches(lambda rng: (rng.standard_normal((128, 784), np.float32), rng.integers(0, 10, 128)))

    def steps(n: int) -> list[float]:
        read, right = [], 0
        for i in range(n):
            x, y = (at.put(a) for a in data(i))
            optimizer.zero_grad()
            found = model(x)
            loss = lib.nn.functional.cross_entropy(found, y)
            loss.backward()
            optimizer.step()
            read.append(loss.item())
            right += (found.argmax(1) == y).sum().item()
        return read

    return steps


def reinforce(at: Setting) -> Steps:
    """16 actions, each drawn in Python from probabilities that are read, then the gradient of their logarithms."""
    lib = at.lib
    model = at.model(lambda lib: lib.nn.Sequential(lib.nn.Linear(4, 64), lib.nn.ReLU(), lib.nn.Linear(64, 2)))
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-3)
    data = at.batches(lambda rng: (rng.standard_normal((16, 4), np.float32), rng.random(16)))
    rewards = at.put(np.linspace(1, -1, 16, dtype=np.float32))

    def steps(n: int) -> list[float]:
        read = []
        for i in range(n):
            seen, draws = data(i)
            taken = []
            for state, draw in zip(seen, draws):
                logs = lib.log_softmax(model(at.put(state)), -1)
                taken.append(logs[int(draw > logs[0].exp().item())])
            loss = -(lib.stack(taken) * rewards).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            read.append(loss.item())
        return read

    return steps


def decode(at: Setting) -> Steps:
    """16 tokens with a cache that grows, each read before the next."""
    lib, F = at.lib, at.lib.nn.functional
    layers = {
        "in": lambda nn: nn.Embedding(256, 64),
        "qkv": lambda nn: nn.Linear(64, 192),
        "out": lambda nn: nn.Linear(64, 256),
    }
    model = at.model(lambda lib: lib.nn.ModuleDict({name: make(lib.nn) for name, make in layers.items()}))
    data = at.batches(lambda rng: rng.integers(0, 256, (1, 1)))

    def steps(n: int) -> list[float]:
        read = []
        with lib.no_grad():
            for i in range(n):
                token, k, v = at.put(data(i)), None, None
                for _ in range(16):
                    x = model["in"](token)
                    q, new_k, new_v = model["qkv"](x).view(1, 1, 3, 4, 16).permute(2, 0, 3, 1, 4)
                    k = new_k if k is None else lib.cat([k, new_k], 2)
                    v = new_v if v is None else lib.cat([v, new_v], 2)
                    seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 1, 64)
                    token = model["out"](x + seen).argmax(-1)
                    read.append(float(token.item()))
        return read

    return steps


def masked(at: Setting) -> Steps:
    """Rows chosen by their values, so that a shape depends on them."""
    data = at.batches(lambda rng: rng.standard_normal((256, 64), np.float32))

    def steps(n: int) -> list[float]:
        read = []
        for i in range(n):
            x = at.put(data(i))
            largest = x[x.mean(1) > 0].sort(dim=0)[0][-3:]
            read.append(largest.mean().item())
        return read

    return steps


def table(at: Setting) -> Steps:
    """Q-learning: a table's cells, added to in place."""
    data = at.batches(lambda rng: (rng.integers(0, 100, 64), rng.integers(0, 4, 64), rng.random(64, np.float32)))
    empty = at.put(np.zeros((100, 4), np.float32))

    def steps(n: int) -> list[float]:
        values, read = empty.clone(), []
        for i in range(n):
            state, action, reward = (at.put(a) for a in data(i))
            wanted = reward + 0.9 * values[(state + 1) % 100].max(1).values
            values.index_put_((state, action), 0.1 * (wanted - values[state, action]), accumulate=True)
            if i % 5 == 4:
                read.append(values.sum().item())
        return read

    return steps


LOOPS = {
    "mixer": Loop(trained(mixer, pictures, classes), why_on_cpu=BESIDE),
    "contrast": Loop(trained(encoder, two_views, contrast), why_on_cpu=BESIDE),
    "signals": Loop(trained(signals, recordings, classes), why_on_cpu=BESIDE),
    "derivatives": Loop(trained(smooth, points, burgers)),
    "kalman": Loop(kalman, why_on_cpu=TINY),
    "nbody": Loop(nbody, why_on_cpu=BESIDE),
    "graph": Loop(graph),
    "maml": Loop(maml),
    "accuracy": Loop(accuracy, reads=2, why_on_cpu=TURNS.format("two")),
    "reinforce": Loop(reinforce, steps=4, reads=17, why_on_cpu=TURNS.format("17")),
    "decode": Loop(decode, steps=3, reads=16, why_on_cpu=TURNS.format("16") + "; gt.PersistentKernel decodes at a worker"),
    "masked": Loop(masked, reads=2, why_on_cpu=TURNS.format("two") + ", one of them for the shape"),
    "table": Loop(table, why_on_cpu="three loads and ten tiny ops take the client's Python longer than eager's kernels"),
}
