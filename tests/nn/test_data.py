"""Datasets and loaders."""

from __future__ import annotations

import threading
from collections import namedtuple

import numpy as np
import pytest
import torch

import gt
from gt.data import DataLoader, Dataset, IterableDataset, TensorDataset
from tests.nn.compare import numbers

X, Y = numbers(10, 3), np.arange(10)


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


class Squares(Dataset):
    def __init__(self, n: int = 10) -> None:
        self.n, self.threads = n, set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        self.threads.add(threading.current_thread().name)
        return {"x": np.full(2, i, np.float32), "y": i * i, "name": f"n{i}", "share": i / 10}


@pytest.mark.parametrize("made", [lambda: TensorDataset(gt.tensor(X), gt.tensor(Y)), lambda: TensorDataset(X, Y)])
@pytest.mark.parametrize("batch_size, drop", [(4, False), (4, True), (10, False), (1, False)])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pytorchs(made, batch_size: int, drop: bool, workers: int) -> None:
    own = list(DataLoader(made(), batch_size, drop_last=drop, num_workers=workers))
    theirs = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size, drop_last=drop
    )
    assert len(own) == len(theirs) == len(DataLoader(made(), batch_size, drop_last=drop))
    for a, b in zip(own, theirs):
        assert isinstance(a, list) and len(a) == len(b)
        for p, q in zip(a, b):
            assert np.array_equal(p.numpy(), q.numpy()) and p.dtype.name == str(q.dtype).removeprefix("torch.")


def test_samples_of_dicts_are_collated_by_part_as_pytorch_does() -> None:
    (own, *_), (theirs, *_) = DataLoader(Squares(), 4), torch.utils.data.DataLoader(Squares(), 4)
    assert np.array_equal(own["x"].numpy(), theirs["x"].numpy()) and own["y"].tolist() == theirs["y"].tolist()
    assert own["y"].dtype is gt.int64 and own["share"].dtype is gt.float64 and theirs["share"].dtype is torch.float64
    assert own["name"] == theirs["name"] == ["n0", "n1", "n2", "n3"]
    Point = namedtuple("Point", "a b")
    found = gt.data.default_collate([Point(1, 2.0), Point(3, 4.0)])
    assert isinstance(found, Point) and found.a.tolist() == [1, 3] and found.b.dtype is gt.float64
    assert gt.data.default_collate([gt.ones(2), gt.zeros(2)]).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert gt.data.default_collate([torch.ones(2)] * 2).shape == (2, 2)
    with pytest.raises(ValueError, match="numbers of parts"):
        gt.data.default_collate([(1, 2), (1,)])


def test_a_shuffle_is_the_seeds_and_changes_each_epoch() -> None:
    def epochs(seed: int, **keywords) -> list:
        gt.manual_seed(seed)
        loader = DataLoader(TensorDataset(gt.arange(50)), 8, shuffle=True, **keywords)
        return [np.concatenate([x.numpy() for (x,) in loader]).tolist() for _ in range(2)]

    first = epochs(1)
    assert sorted(first[0]) == list(range(50)) and first[0] != first[1] and first[0] != list(range(50))
    assert epochs(1) == first and epochs(2) != first and epochs(1, num_workers=2) == first
    assert epochs(1, generator=7) == epochs(2, generator=7)


def test_threads_read_in_the_background_and_keep_the_order() -> None:
    data = Squares(40)
    loader = DataLoader(data, 4, num_workers=3)
    assert [b["y"].tolist() for b in loader] == [[i * i for i in range(k, k + 4)] for k in range(0, 40, 4)]
    assert data.threads and all(name.startswith("gt-data") for name in data.threads)
    assert not [t for t in threading.enumerate() if t.name.startswith("gt-data")]


def test_the_next_batch_is_sent_before_this_one_is_given(cluster) -> None:
    loader = iter(DataLoader(Squares(), 2))
    next(loader)
    cluster.settle()
    held = cluster.workers[0].stats()["ops"]["load"]
    assert held == 2 * 3  # x, y and share of two batches
    del loader


def test_a_loop_left_early_leaves_no_threads() -> None:
    for _ in DataLoader(Squares(1000), 1, num_workers=2):
        break
    assert not [t for t in threading.enumerate() if t.name.startswith("gt-data")]


def test_a_failure_while_reading_reaches_the_loop() -> None:
    class Broken(Squares):
        def __getitem__(self, i: int) -> dict:
            if i == 5:
                raise OSError("no such picture")
            return super().__getitem__(i)

    for workers in (0, 2):
        with pytest.raises(OSError, match="no such picture"):
            list(DataLoader(Broken(), 2, num_workers=workers))


def test_a_stream_is_batched() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(7))

    for workers in (0, 2):
        assert [b.tolist() for b in DataLoader(Stream(), 3, num_workers=workers)] == [[0, 1, 2], [3, 4, 5], [6]]
        assert [b.tolist() for b in DataLoader(Stream(), 3, drop_last=True, num_workers=workers)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream(), shuffle=True)
    with pytest.raises(TypeError, match="no len"):
        len(DataLoader(Stream()))


def test_samplers_batches_and_collation_of_ones_own() -> None:
    data = Squares()
    assert [b["y"].tolist() for b in DataLoader(data, 2, sampler=[3, 1, 2])] == [[9, 1], [4]]
    assert [b["y"].tolist() for b in DataLoader(data, batch_sampler=[[1, 2, 3], [4]])] == [[1, 4, 9], [16]]
    assert [b.tolist() for b in DataLoader(data, 5, collate_fn=lambda s: np.array([x["y"] for x in s]).sum(keepdims=True))] == [
        [30], [255],
    ]  # fmt: skip
    assert [s["y"] for s in DataLoader(data, None)] == [i * i for i in range(10)]
    with pytest.raises(ValueError, match="batch_sampler"):
        DataLoader(data, 4, batch_sampler=[[1]])
    with pytest.raises(ValueError, match="sampler"):
        DataLoader(data, shuffle=True, sampler=[1])
    with pytest.raises(ValueError, match="1 or more"):
        DataLoader(data, 0)


def test_datasets_are_parted_and_joined() -> None:
    both = TensorDataset(gt.arange(4)) + TensorDataset(gt.arange(10, 13))
    assert len(both) == 7 and both[4][0].item() == 10 and both[-1][0].item() == 12 and both[3][0].item() == 3
    with pytest.raises(IndexError):
        both[7]
    parts = gt.data.random_split(Squares(), [0.7, 0.3])
    assert [len(p) for p in parts] == [7, 3] and sorted(i for p in parts for i in p.indices) == list(range(10))
    assert gt.data.Subset(Squares(), [2, 3])[1]["y"] == 9
    with pytest.raises(ValueError, match="add up"):
        gt.data.random_split(Squares(), [3, 3])
    with pytest.raises(ValueError, match="one length"):
        TensorDataset(gt.ones(2), gt.ones(3))


def test_pytorchs_name_for_it() -> None:
    from gt.utils.data import DataLoader as same

    assert same is DataLoader


def test_samplers_draw_by_weight_of_a_part_and_by_a_generator() -> None:
    with gt.testing.cluster():
        draws = list(gt.data.WeightedRandomSampler([0.0, 3.0, 1.0], 400, generator=gt.Generator().manual_seed(0)))
        assert set(draws) == {1, 2} and 250 < draws.count(1) < 350
        assert sorted(gt.data.WeightedRandomSampler([1, 1, 1], 3, replacement=False)) == [0, 1, 2]
        assert sorted(gt.data.SubsetRandomSampler([4, 7, 9])) == [4, 7, 9]
        assert len(list(gt.data.RandomSampler(range(5), replacement=True, num_samples=12))) == 12
        first, second = (list(gt.data.RandomSampler(range(50), generator=gt.Generator().manual_seed(3))) for _ in range(2))
        assert first == second and sorted(first) == list(range(50)) != first


def test_the_result_of_a_collate_fn_is_yielded_unchanged_and_strange_samples_raise() -> None:
    for utils in (gt.utils.data, torch.utils.data):
        (batch,) = utils.DataLoader(list(range(3)), 3, collate_fn=lambda batch: (np.asarray(batch), len(batch)))
        assert isinstance(batch[0], np.ndarray) and batch[1] == 3
        with pytest.raises(TypeError, match="collate"):
            utils.default_collate([None, None])
        with pytest.raises(RuntimeError):
            utils.default_collate([(1, 2), (1,)])
        numbers, names = utils.default_collate([(1.5, "a"), (2.5, "b")])
        assert numbers.tolist() == [1.5, 2.5] and "float64" in str(numbers.dtype) and names == ("a", "b")
