"""Batches. Threads read and collate ahead of the loop; a batch is sent to the workers one step before it is asked
for, from the loop's own thread, since a session's stream is in the order of that thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import tensor
from gt.client.functions.join import stack
from gt.client.here import here
from gt.client.scope import HERE
from gt.data.dataset import IterableDataset, TensorDataset
from gt.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from gt.errors import ArgumentError


def default_collate(batch: list) -> Any:
    """Samples as one batch of tensors: numbers and arrays stacked, tuples and dicts by part.

    >>> gt.data.default_collate([(1, 0.5), (2, 1.5)])
    [tensor([1, 2]), tensor([0.5000, 1.5000], dtype=gt.float64)]
    """
    return _sent(_stacked(batch))


def _stacked(samples: Any) -> Any:
    """A batch whose arrays are still the client's."""
    first = samples[0]
    if isinstance(first, Tensor):
        return stack(samples)
    if type(first).__module__.split(".")[0] == "torch":
        return np.stack([s.detach().cpu().numpy() for s in samples])
    if isinstance(first, np.ndarray):
        return np.stack(samples)
    if isinstance(first, (bool, int)):  # `tensor` of them, where a float among integers makes the default dtype
        numbers = np.asarray(samples)
        return numbers if numbers.dtype.kind != "f" else numbers.astype(DEFAULT.dtype.name)
    if isinstance(first, (float, np.generic)):
        return np.asarray(samples, np.float64 if type(first) is float else None)
    if isinstance(first, dict):
        return {k: _stacked([s[k] for s in samples]) for k in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_stacked, zip(*samples)))
    if isinstance(first, (tuple, list)):
        if any(len(s) != len(first) for s in samples):
            raise ArgumentError(
                f"cannot collate samples of {len(first)} and of other numbers of parts: give DataLoader a collate_fn"
            )
        return [_stacked(part) for part in zip(*samples)]
    if isinstance(first, (str, bytes)):
        return samples
    raise TypeError(
        f"cannot collate samples of {type(first).__name__}: expected tensors, arrays, numbers, strings, and tuples, lists or "
        "dicts of those; give DataLoader a collate_fn"
    )


def default_convert(data: Any) -> Any:
    """Arrays and numbers of NumPy as tensors, inside dicts, lists and tuples too."""
    if isinstance(data, np.generic):
        data = np.asarray(data)
    return _sent(data)


def get_worker_info() -> None:
    """None, as in PyTorch's main process: samples are read by threads of the script, and a stream is read once, whole."""


def _sent(batch: Any) -> Any:
    """A batch with its arrays on the workers."""
    if isinstance(batch, np.ndarray):
        return tensor(batch) if batch.dtype.kind in "biufc" else batch
    if isinstance(batch, dict):
        return {k: _sent(v) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_sent, batch))
    return type(batch)(map(_sent, batch)) if isinstance(batch, (list, tuple)) else batch


class DataLoader:
    """`for x, y in DataLoader(data, batch_size=32, shuffle=True):` batches as tensors.

    `num_workers` threads read samples ahead, `prefetch_factor` batches each: arrays rather than tensors, which are only sent
    to the workers from the loop.
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None, batch_sampler: Any = None,
        num_workers: int = 0, collate_fn: Callable | None = None, pin_memory: bool = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Callable | None = None, *, generator: Any = None, prefetch_factor: int | None = 2,
        persistent_workers: bool = False, multiprocessing_context: Any = None, pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:  # fmt: skip
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.multiprocessing_context = multiprocessing_context
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(
                f"expected num_workers of 0 or more and prefetch_factor of 1 or more, got {num_workers} and {prefetch_factor}"
            )
        if isinstance(dataset, IterableDataset) and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                f"{type(dataset).__name__} is an IterableDataset, which decides the order of its samples: "
                "leave out shuffle, sampler and batch_sampler"
            )
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler decides size and order of batches: leave out batch_size, shuffle, sampler and drop_last"
                )
            self.batch_sampler, self.sampler = batch_sampler, None
            return
        if sampler is not None and shuffle:
            raise ValueError("sampler decides the order of samples: leave out shuffle")
        self.batch_sampler = self.sampler = None
        if not isinstance(dataset, IterableDataset):
            self.sampler = sampler or (RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset))
            if batch_size is not None:
                self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            raise TypeError(f"{type(self.dataset).__name__} is an IterableDataset: its DataLoader has no len()")
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The next batch is sent before this one is given."""
        batches = self._read_ahead() if self.num_workers else (read() for read in self._reads())
        ahead: deque = deque()
        try:
            for batch in batches:
                ahead.append(_sent(batch) if self.collate_fn is None else batch)
                if len(ahead) > 1:
                    yield ahead.popleft()
            yield from ahead
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _reads(self) -> Iterator[Callable[[], Any]]:
        """Functions that each read one batch."""
        if isinstance(self.dataset, IterableDataset):
            yield from self._stream(iter(self.dataset))
        elif self.batch_sampler is None:
            assert self.sampler is not None
            yield from (partial(self._one, i) for i in self.sampler)
        else:
            yield from (partial(self._read, batch) for batch in self.batch_sampler)

    def _stream(self, samples: Iterator[Any]) -> Iterator[Callable[[], Any]]:
        if self.batch_size is None:
            yield from (partial(self._alone, s) for s in samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield partial(self._collated, batch)

    def _one(self, index: Any) -> Any:
        return self._alone(self.dataset[index])

    def _alone(self, sample: Any) -> Any:
        return sample if self.collate_fn is None else self.collate_fn(sample)

    def _read(self, indices: list[int]) -> Any:
        if isinstance(self.dataset, TensorDataset) and self.collate_fn is None:
            return list(self.dataset.batch(indices))
        return self._collated([self.dataset[i] for i in indices])

    def _collated(self, samples: list) -> Any:
        return (self.collate_fn or _stacked)(samples)

    def _read_ahead(self) -> Iterator[Any]:
        """Batches in order, several being read at once."""
        if isinstance(self.dataset, TensorDataset) and any(isinstance(t, Tensor) for t in self.dataset.tensors):
            yield from (read() for read in self._reads())  # nothing to read: the rows are picked on the workers
            return
        scope, number = here(), count().__next__

        def begin() -> None:
            HERE.scope = scope  # ops of a sample belong to the loop's session
            if self.worker_init_fn is not None:
                self.worker_init_fn(number())

        reads = self._reads()
        with ThreadPoolExecutor(self.num_workers, "gt-data", begin) as pool:
            under_way: deque[Future] = deque()
            try:
                for read in islice(reads, self.num_workers * self.prefetch_factor):
                    under_way.append(pool.submit(read))
                while under_way:
                    done = under_way.popleft().result()
                    for read in islice(reads, 1):
                        under_way.append(pool.submit(read))
                    yield done
            finally:
                for future in under_way:
                    future.cancel()
