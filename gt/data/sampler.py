"""In which order a dataset is gone through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gt.client.session import here


def shuffled(n: int, generator: Any = None) -> np.ndarray:
    """The numbers below n in an order of the session's seed (`gt.manual_seed`), or of a seed or generator of one's own."""
    if generator is None:
        session = here().session
        generator = np.random.Generator(np.random.Philox(key=[session.seed, next(session.draws)]))
    elif not isinstance(generator, np.random.Generator):
        generator = np.random.default_rng(generator)
    return generator.permutation(n)


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
    """In another order each time."""

    def __init__(self, data_source: Any, generator: Any = None) -> None:
        self.data_source, self.generator = data_source, generator
        if generator is not None and not isinstance(generator, np.random.Generator):
            self.generator = np.random.default_rng(generator)  # one that goes on from epoch to epoch

    def __iter__(self) -> Iterator[int]:
        return iter(shuffled(len(self.data_source), self.generator).tolist())

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler(Sampler):
    """So many at a time."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"a batch is of 1 or more, not {batch_size}")
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
