"""Loops without a network: k-means, a stencil, power iteration; and embeddings of which a step touches few rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from loops import Loop, Setting, Steps


def kmeans(at: Setting) -> Steps:
    """A batch of points, their nearest centres, new centres; the mean distance read every 10 steps."""
    lib = at.lib
    points, wide, centres = at.pick((16384, 64, 256), (1024, 8, 16))
    data = at.batches(lambda rng: rng.standard_normal((points, wide), np.float32))
    first = at.rng.standard_normal((centres, wide), np.float32)

    def step(x: Any, c: Any) -> Any:
        apart = (x * x).sum(1, keepdim=True) - 2 * x @ c.T + (c * c).sum(1)  # (points, centres)
        distance, nearest = apart.min(1)
        sums = lib.zeros_like(c).index_add(0, nearest, x)
        counts = lib.zeros_like(c[:, 0]).index_add(0, nearest, lib.ones_like(x[:, 0]))
        return 0.9 * c + 0.1 * sums / counts.clamp(min=1)[:, None], distance.mean()

    once = at.compiled(step)

    def steps(n: int) -> list[float]:
        c, read = at.put(first), []
        for i in range(n):
            c, distance = once(at.put(data(i)), c)
            c = at.kept(c)
            if i % 10 == 9:
                read.append(distance.item())
        return read

    return steps


def stencil(at: Setting) -> Steps:
    """Heat on a square plate by explicit steps, 10 between two looks at it; a source from NumPy each time."""
    side = at.pick(1024, 128)
    data = at.batches(lambda rng: rng.standard_normal((side, side), np.float32))
    roll = at.lib.roll

    def ten(u: Any, source: Any) -> Any:
        for _ in range(10):
            around = roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1) - 4 * u
            u = u + 0.1 * around + 0.01 * source
        return u

    advance = at.compiled(ten)
    u = at.put(np.zeros((side, side), np.float32))

    def steps(n: int) -> list[float]:
        nonlocal u
        read = []
        for i in range(n):
            u = advance(u, at.put(data(i)))
            u = at.kept(u)
            if i % 5 == 4:
                read.append(u.abs().max().item())
        return read

    return steps


def power(at: Setting) -> Steps:
    """The largest eigenvalue of a matrix, with a read in every step that decides whether to go on."""
    lib = at.lib
    side = at.pick(2048, 256)
    a = at.rng.standard_normal((side, side), np.float32)
    matrix = at.put(a @ a.T / side)

    def multiply(v: Any) -> Any:
        w = matrix @ v
        size = lib.linalg.vector_norm(w)
        return w / size, size

    once = at.compiled(multiply)

    def steps(n: int) -> list[float]:
        v, before, read = at.put(np.ones(side, np.float32)), 0.0, []
        for _ in range(n):
            v, size = once(v)
            v = at.kept(v)
            read.append(size.item())
            if abs(read[-1] - before) < 1e-9:
                v = at.put(np.ones(side, np.float32))
            before = read[-1]
        return read

    return steps


def embeddings(at: Setting) -> Steps:
    """Pairs of words and words that are no pairs: sparse gradients, of which SGD updates few rows of a large table."""
    lib, F = at.lib, at.lib.nn.functional
    words, wide, size = at.pick((200_000, 128, 1024), (5000, 32, 64))

    def make(lib: Any) -> Any:
        nn = lib.nn

        class Pairs(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.word, self.context = (nn.Embedding(words, wide, sparse=True) for _ in range(2))

            def forward(self, word: Any, others: Any) -> Any:
                return (self.word(word)[:, None] * self.context(others)).sum(-1)  # (size, 6)

        return Pairs()

    model = at.model(make)
    optimizer = lib.optim.SGD(model.parameters(), lr=0.05)
    data = at.batches(lambda rng: (rng.integers(0, words, size), rng.integers(0, words, (size, 6))))
    truth = np.zeros((size, 6), np.float32)
    truth[:, 0] = 1

    def steps(n: int) -> list[float]:
        losses = []
        for i in range(n):
            word, others = (at.put(a) for a in data(i))
            loss = F.binary_cross_entropy_with_logits(model(word, others), at.put(truth))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 9:
                losses.append(loss.item())
        return losses

    return steps


AHEAD = "its steps are sent ahead; three ops and a read take the client's Python as long as eager's three launches, or longer"
FASTER = "its steps are sent ahead; eager computes one in less time than the client's Python takes for three ops and a read"
FEW = "the client loads three arrays and issues the step in Python besides the worker's kernels"
KERNELS = (
    "the worker's kernels take a fifth of eager's step; it receives a message and a load besides, and the client issues it"
)
ISSUED = "the kernels are eager's; after the read of every fifth step the worker waits for the next load and call"
TWICE = "the client copies 4 MB into shared memory, in 0.26 ms on fewer than four cores; the GPU's kernels take 0.12"
COPIED = "the client copies 4 MB into shared memory and issues 130 ops in each step; the GPU's kernels take 0.04 ms"
LOOPS = {
    "kmeans": Loop(kmeans, why_on_gpu=TWICE, why_on_cpu=KERNELS),
    "stencil": Loop(stencil, why_on_gpu=COPIED, why_on_cpu=ISSUED),
    "power": Loop(power, steps=200, reads=1, why_on_gpu=AHEAD, why_on_cpu=FASTER),
    "embeddings": Loop(embeddings, why_on_gpu=FEW, why_on_cpu=FEW),
}
