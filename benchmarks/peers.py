"""`python benchmarks/run.py peers`: tasks of clusters, by GT and by the installed ones of Ray, Dask, Monarch and JAX (`pip
install -e '.[peers]'`). Each has two workers on this host, which compute by NumPy (JAX: by itself, in this process), and gives
the same numbers, which are compared before anything is timed.

- ops: a thousand additions to a vector of 256, each of the result of the one before, until the last is read; ops a second
- round_trip: one addition and its read, us
- step: data-parallel: gradients of a two-layer network on two halves of a batch, their mean, the update; ms, read after 10
- transfer: 64 MB to a worker and back, GB/s both ways together"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measure import Result, rates, times, took

CHAIN, STEPS, ROUNDS = 1000, 10, 3
BATCH, IN, WIDE, OUT, RATE = 256, 128, 256, 10, 0.1
Weights = tuple[np.ndarray, ...]
rng = np.random.default_rng(0)
FIRST: Weights = tuple(rng.standard_normal(s, np.float32) / 16 for s in ((IN, WIDE), (WIDE, OUT)))
DATA, WANTED = (rng.standard_normal((BATCH, n), np.float32) for n in (IN, OUT))
BLOCK = np.zeros(16 << 20, np.float32)


def add(x: np.ndarray, y: float) -> np.ndarray:
    return x + np.float32(y)


def gradients(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Of the mean of squares over a part of the batch."""
    a, b = weights
    h = np.maximum(x @ a, 0)
    g = (h @ b - y) * np.float32(2 / y.size)
    return x.T @ ((g @ b.T) * (h > 0)), h.T @ g


def updated(weights: Weights, parts: list[Weights]) -> Weights:
    return tuple(w - np.float32(RATE) * sum(each) / np.float32(len(parts)) for w, *each in zip(weights, *parts))


class Peer:
    """The interface of all rivals. `stop` ends it."""

    has = ("ops", "round_trip", "step", "transfer")

    def chain(self, n: int) -> np.ndarray:
        raise NotImplementedError

    def steps(self, n: int) -> Weights:
        raise NotImplementedError

    def there_and_back(self) -> np.ndarray:
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing to end."""


class GT(Peer):
    def __init__(self) -> None:
        self.gt = gt = importlib.import_module("gt")
        gt.gpu_workers(2)
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        gt.register_config("copies", gt.SignalConfig(gt.ShardConfig(replicated=True)))
        self.zeros = gt.from_numpy(np.zeros(256, np.float32))

    def chain(self, n: int) -> np.ndarray:
        x = self.zeros
        for _ in range(n):
            x = x + 1.0
        return x.numpy()

    def steps(self, n: int) -> Weights:
        gt = self.gt
        with gt.signal("copies"):
            weights = [gt.from_numpy(w) for w in FIRST]
        with gt.signal("rows"):
            x, y = gt.from_numpy(DATA), gt.from_numpy(WANTED)
        for _ in range(n):
            for w in weights:
                w.requires_grad_()
            loss = (((x @ weights[0]).relu() @ weights[1] - y) ** 2).mean()
            loss.backward()
            with gt.no_grad():
                weights = [w - RATE * w.grad for w in weights]
        return tuple(w.numpy() for w in weights)

    def there_and_back(self) -> np.ndarray:
        return self.gt.from_numpy(BLOCK).numpy()


class Tasks(Peer):
    """A system of remote functions: `call(function, *arguments) -> future`, `get(futures) -> values`."""

    def call(self, function: Callable, *arguments: Any) -> Any:
        raise NotImplementedError

    def get(self, futures: list[Any]) -> list[Any]:
        raise NotImplementedError

    def chain(self, n: int) -> np.ndarray:
        x: Any = np.zeros(256, np.float32)
        for _ in range(n):
            x = self.call(add, x, 1.0)
        return self.get([x])[0]

    def steps(self, n: int) -> Weights:
        halves = list(zip(np.split(DATA, 2), np.split(WANTED, 2)))
        weights = FIRST
        for _ in range(n):
            weights = updated(weights, self.get([self.call(gradients, weights, *half) for half in halves]))
        return weights

    def there_and_back(self) -> np.ndarray:
        return self.get([self.call(add, BLOCK, 1.0)])[0]


class Ray(Tasks):
    def __init__(self) -> None:
        self.ray = importlib.import_module("ray")
        self.ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        self.remote: dict[Callable, Any] = {}

    def call(self, function: Callable, *arguments: Any) -> Any:
        if function not in self.remote:
            self.remote[function] = self.ray.remote(function)
        return self.remote[function].remote(*arguments)

    def get(self, futures: list[Any]) -> list[Any]:
        return self.ray.get(futures)

    def stop(self) -> None:
        self.ray.shutdown()


class Dask(Tasks):
    def __init__(self) -> None:
        distributed = importlib.import_module("distributed")
        self.client = distributed.Client(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)

    def call(self, function: Callable, *arguments: Any) -> Any:
        return self.client.submit(function, *arguments, pure=False)

    def get(self, futures: list[Any]) -> list[Any]:
        return self.client.gather(futures)

    def stop(self) -> None:
        self.client.shutdown()


class Jax(Peer):
    """One process: it has no workers to send to."""

    has = ("ops", "step")

    def __init__(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self.jax = jax = importlib.import_module("jax")
        self.jnp = jnp = importlib.import_module("jax.numpy")
        self.zeros = jnp.zeros(256, jnp.float32)

        def loss(weights: Any, x: Any, y: Any) -> Any:
            return ((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2).mean()

        def step(weights: Any, x: Any, y: Any) -> Any:
            return tuple(w - RATE * g for w, g in zip(weights, jax.grad(loss)(weights, x, y)))

        self.step = jax.jit(step)

    def chain(self, n: int) -> np.ndarray:
        x = self.zeros
        for _ in range(n):
            x = x + 1.0
        return np.asarray(x)

    def steps(self, n: int) -> Weights:
        weights, x, y = tuple(map(self.jnp.asarray, FIRST)), self.jnp.asarray(DATA), self.jnp.asarray(WANTED)
        for _ in range(n):
            weights = self.step(weights, x, y)
        return tuple(np.asarray(w) for w in weights)


class Monarch(Peer):
    """A mesh of two processes with an actor in each."""

    def __init__(self) -> None:
        actor = importlib.import_module("monarch.actor")

        class Worker(actor.Actor):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                self.x = np.zeros(256, np.float32)

            @actor.endpoint
            async def add(self, y: float) -> None:
                self.x = add(self.x, y)

            @actor.endpoint
            async def zero(self) -> None:
                self.x = np.zeros(256, np.float32)

            @actor.endpoint
            async def read(self) -> np.ndarray:
                return self.x

            @actor.endpoint
            async def gradients(self, weights: Weights, halves: list) -> Weights:
                return gradients(weights, *halves[actor.current_rank().rank])

            @actor.endpoint
            async def echo(self, block: np.ndarray) -> np.ndarray:
                return add(block, 1.0)

        self.mesh = actor.this_host().spawn_procs(per_host={"procs": 2})
        self.workers = self.mesh.spawn("workers", Worker)
        self.first = self.workers.slice(procs=0)

    def chain(self, n: int) -> np.ndarray:
        self.first.zero.call_one().get()
        for _ in range(n):
            self.first.add.broadcast(1.0)
        return self.first.read.call_one().get()

    def steps(self, n: int) -> Weights:
        halves, weights = list(zip(np.split(DATA, 2), np.split(WANTED, 2))), FIRST
        for _ in range(n):
            parts = self.workers.gradients.call(weights, halves).get()
            weights = updated(weights, [part for _, part in parts.items()])
        return weights

    def there_and_back(self) -> np.ndarray:
        return self.first.echo.call_one(BLOCK).get()

    def stop(self) -> None:
        self.mesh.stop().get()


PEERS: dict[str, tuple[str, Callable[[], Peer]]] = {
    "ray": ("ray", Ray), "dask": ("distributed", Dask), "monarch": ("monarch", Monarch),
    "jax": ("jax", Jax),  # last: its threads do not outlive a fork
}  # fmt: skip


def installed() -> list[str]:
    return [name for name, (module, _) in PEERS.items() if importlib.util.find_spec(module)]


def agree(name: str, ours: Peer, theirs: Peer) -> None:
    """The same numbers, and everything warm."""
    assert np.array_equal(ours.chain(CHAIN), np.full(256, CHAIN)), "gt"
    assert np.array_equal(theirs.chain(CHAIN), np.full(256, CHAIN)), name
    for a, b in zip(ours.steps(2 * STEPS), theirs.steps(2 * STEPS)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=name)


def seconds(peer: Peer, what: str) -> float:
    """The best of several."""
    work: dict[str, Callable[[], Any]] = {
        "ops": lambda: peer.chain(CHAIN), "round_trip": lambda: [peer.chain(1) for _ in range(50)],
        "step": lambda: peer.steps(STEPS), "transfer": peer.there_and_back,
    }  # fmt: skip
    return min(took(work[what]) for _ in range(ROUNDS))


def compared(name: str, ours: Peer, theirs: Peer) -> Iterator[Result]:
    agree(name, ours, theirs)
    for what in theirs.has:
        a, b = seconds(ours, what), seconds(theirs, what)
        if what == "ops":
            yield rates(f"{what} {name}", CHAIN / a, CHAIN / b, "ops/s")
        elif what == "transfer":
            yield rates(f"{what} {name}", 2 * BLOCK.nbytes / a / 1e9, 2 * BLOCK.nbytes / b / 1e9, "GB/s")
        else:
            each, unit = (50, "us") if what == "round_trip" else (STEPS, "ms/step")
            scale = 1e6 if what == "round_trip" else 1e3
            yield times(f"{what} {name}", a / each * scale, b / each * scale, unit)


def peers() -> Iterator[Result]:
    os.environ.setdefault("GT_BACKEND", "numpy")
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # their workers import these functions
    ours: Peer | None = None
    for name in installed():
        ours = ours or GT()
        with ExitStack() as ended:
            theirs = PEERS[name][1]()
            ended.callback(theirs.stop)
            yield from compared(name, ours, theirs)


CASES = {"peers": peers}
