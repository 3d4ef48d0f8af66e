"""Things that can be learnt from, by number or one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.data.sampler import shuffled
from gt.ops.table import TABLE


class Dataset:
    """Subclass with `__getitem__` and `__len__`."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no __len__")  # which list() takes for "not known", as of PyTorch's

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Subclass with `__iter__`: a stream of unknown length."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class TensorDataset(Dataset):
    """Rows of tensors (or arrays) that belong together. A batch of rows of tensors is picked on the workers, in one go."""

    def __init__(self, *tensors: Any) -> None:
        if not tensors or any(len(t) != len(tensors[0]) for t in tensors):
            raise ValueError(f"expected tensors of one length, got {[len(t) for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Sequence[int]) -> tuple:
        """These rows of each tensor."""
        places = np.asarray(indices, np.int64)
        return tuple(_rows(t, places) for t in self.tensors)


def _rows(t: Any, places: np.ndarray) -> Any:
    """Rows of an array, or of a tensor: there one instruction, which carries only the places."""
    if not isinstance(t, Tensor):
        return np.asarray(t)[places]
    return apply(TABLE["index_select"], (t, tensor(places)), (0,))


class Subset(Dataset):
    """Some elements of a dataset."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Datasets one behind another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range for a dataset of {n} samples")
        at = bisect_right(self.cumulative_sizes, index % n)
        return self.datasets[at][index % n - (self.cumulative_sizes[at - 1] if at else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class StackDataset(Dataset):
    """Datasets side by side: tuples of their elements, or dicts of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset takes datasets either by position or by name")
        self.datasets = args or kwargs
        sizes = [len(d) for d in (args or kwargs.values())]
        if len(set(sizes)) > 1:
            raise ValueError(f"expected datasets of one length, got {sizes}")
        self.length = sizes[0]

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {k: d[index] for k, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self) -> int:
        return self.length


class ChainDataset(IterableDataset):
    """Streams one behind another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            yield from dataset

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Parts of a dataset, chosen at random: as many elements each, or shares of 1."""
    n = len(dataset)
    if all(isinstance(s, float) for s in lengths) and abs(sum(lengths) - 1) < 1e-9:
        sizes = [int(n * s) for s in lengths]
        for i in range(n - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(s) for s in lengths]
    if sum(sizes) != n:
        raise ValueError(f"parts of {sizes} do not add up to {n}")
    order = shuffled(n, generator)
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end].tolist()) for end, size in zip(ends, sizes)]
