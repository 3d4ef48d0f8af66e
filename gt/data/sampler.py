"""In which order a dataset is gone through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from gt.client.functions.random import Generator
from gt.client.here import here


def chance(generator: Any = None) -> np.random.Generator:
    """Random numbers of the session's seed (`gt.manual_seed`), or of a seed or generator of one's own."""
    if isinstance(generator, np.random.Generator):
        return generator
    if generator is None:
        session = here().session
        return np.random.Generator(np.random.Philox(key=[session.seed, next(session.draws)]))
    if isinstance(generator, Generator):
        return np.random.Generator(np.random.Philox(key=[generator.initial_seed(), next(generator.draws)]))
    return np.random.default_rng(generator)


def shuffled(n: int, generator: Any = None) -> np.ndarray:
    """The numbers below n in a random order."""
    return chance(generator).permutation(n)


LARGE = 1 << 22  # elements from which an order is computed as it is asked for, not held in memory
CHUNK = 1 << 12
ROUNDS = 6


def shuffling(n: int, generator: Any = None) -> Iterator[int]:
    """The numbers below n in a random order, in memory that does not grow with n: a Feistel network permutes the next power of
    four, and numbers from n on are skipped."""
    if n <= LARGE:
        yield from shuffled(n, generator).tolist()
        return
    half = np.uint64(((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    keys = chance(generator).integers(0, 1 << 63, ROUNDS, dtype=np.uint64)
    for start in range(0, 1 << (2 * int(half)), CHUNK):
        at = np.arange(start, start + CHUNK, dtype=np.uint64)
        left, right = at >> half, at & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        found = (left << half) | right
        yield from found[found < n].tolist()


def _mixed(x: np.ndarray) -> np.ndarray:
    """Each bit of the result depends on each bit of a 64-bit number."""
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(multiplier)
    return x ^ (x >> np.uint64(33))


class Sampler:
    """Subclass with `__iter__`, which gives numbers of elements."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler):
    """As they stand."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """In another order each time; with `replacement`, so many draws of any."""

    def __init__(
        self, data_source: Any, replacement: Any = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement: expected True or False, got {replacement!r}")
        self.data_source, self.replacement, self.num_samples = data_source, replacement, num_samples
        self.generator = generator
        if generator is not None and not isinstance(generator, (np.random.Generator, Generator)):
            self.generator = np.random.default_rng(generator)  # one that goes on from epoch to epoch

    def __iter__(self) -> Iterator[int]:
        n, want = len(self.data_source), len(self)
        if not n:
            return iter(())
        return islice(self._drawn(n) if self.replacement else self._epochs(n), want)

    def _drawn(self, n: int) -> Iterator[int]:
        draw = chance(self.generator)
        while True:
            yield from draw.integers(0, n, CHUNK).tolist()

    def _epochs(self, n: int) -> Iterator[int]:
        while True:
            yield from shuffling(n, self.generator)

    def __len__(self) -> int:
        return len(self.data_source) if self.num_samples is None else self.num_samples


class SubsetRandomSampler(Sampler):
    """Some of the elements, in another order each time."""

    def __init__(self, indices: Any, generator: Any = None) -> None:
        self.indices, self.generator = list(indices), generator

    def __iter__(self) -> Iterator[int]:
        return iter([self.indices[i] for i in shuffled(len(self.indices), self.generator)])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` draws of elements by their weights."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples: expected 1 or more, got {num_samples}")
        self.weights = np.asarray(weights.tolist() if hasattr(weights, "tolist") else weights, np.float64)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        share = self.weights / self.weights.sum()
        return iter(chance(self.generator).choice(len(share), self.num_samples, self.replacement, share).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """So many at a time."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"expected batch_size of 1 or more, got {batch_size}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class DistributedSampler(Sampler):
    """Every `num_replicas`-th element, in an order that all replicas share. A GT script is rank 0 of 1 by default."""

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:  # fmt: skip
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        self.num_replicas, self.rank = num_replicas or 1, rank or 0
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank is {rank}: expected a number from 0 to {self.num_replicas - 1}")
        size = len(dataset)
        self.num_samples = size // self.num_replicas if drop_last else -(-size // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Another order for each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = np.random.default_rng(self.seed + self.epoch).permutation(size) if self.shuffle else np.arange(size)
        return iter(np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return self.num_samples
