"""What scripts import and set around their tensors: modules by PyTorch's names, sizes, tensor types, samplers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import gt


def test_modules_that_scripts_import_are_there() -> None:

    import gt.distributed as dist
    from gt.cuda.amp import GradScaler, autocast
    from gt.utils.data.dataloader import DataLoader, default_collate
    from gt.utils.data.dataset import Dataset, random_split
    from gt.utils.data.distributed import DistributedSampler
    from gt.utils.data.sampler import RandomSampler

    assert DataLoader is gt.data.DataLoader and Dataset is gt.data.Dataset and RandomSampler is gt.data.RandomSampler
    assert callable(default_collate) and callable(random_split) and callable(GradScaler)
    with gt.testing.cluster():
        with autocast():
            assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.float16
        assert not gt.accelerator.is_available() and gt.accelerator.current_accelerator() is None
        assert dist.get_rank() == 0 and dist.get_world_size() == 1
        assert list(DistributedSampler(range(4), shuffle=False)) == [0, 1, 2, 3]


def test_a_script_is_rank_0_of_1() -> None:
    dist = gt.distributed
    with gt.testing.cluster():
        dist.init_process_group("nccl")
        assert dist.is_initialized()
        x, parts = gt.ones(3), [gt.zeros(3)]
        dist.all_reduce(x)
        dist.all_gather(parts, x)
        assert x.tolist() == parts[0].tolist() == [1.0, 1.0, 1.0]
        assert dist.broadcast(x, 0, async_op=True).wait() and dist.barrier() is None
        with pytest.raises(ValueError, match="rank 0 of 1"):
            dist.send(x, 1)
        with pytest.raises(ValueError, match="rank 2"):
            dist.broadcast(x, 2)
        dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="rank 1 of 4.*one process"):
        dist.init_process_group(rank=1, world_size=4)
    assert not dist.is_initialized()


def test_backend_settings_are_modules_that_take_assignments() -> None:
    import gt.backends.cudnn as cudnn

    cudnn.benchmark = True
    gt.backends.cuda.matmul.allow_tf32 = True
    assert gt.backends.cudnn.benchmark and not gt.backends.mps.is_available() and not cudnn.is_available()
    cudnn.benchmark = gt.backends.cuda.matmul.allow_tf32 = False


def test_onnx_export_says_what_to_do_instead() -> None:
    with pytest.raises(NotImplementedError, match="safetensors"):
        gt.onnx.export(None, None, "a.onnx")


def test_a_shape_is_a_size() -> None:
    with gt.testing.cluster():
        x = gt.ones(2, 3, 4)
        assert isinstance(x.shape, gt.Size) and isinstance(x.size(), gt.Size) and x.shape == (2, 3, 4)
        assert x.shape.numel() == 24 and isinstance(x.shape[:2], gt.Size) and x.shape[-1] == 4
        assert isinstance(x.shape + (1,), gt.Size) and hash(x.shape) == hash((2, 3, 4))
        assert gt.zeros(x.shape).shape == x.reshape(x.shape[:1] + (-1,)).reshape(x.shape).shape
        assert gt.Size([2, 3]) == torch.Size([2, 3])


def test_tensor_types_make_tensors_of_their_dtype() -> None:
    with gt.testing.cluster():
        for name in ("FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ByteTensor", "BoolTensor"):
            own, theirs = getattr(gt, name)([0, 1, 2]), getattr(torch, name)([0, 1, 2])
            assert own.tolist() == theirs.tolist() and own.dtype.name == str(theirs.dtype).removeprefix("torch.")
            assert getattr(gt, name)(2, 3).shape == getattr(torch, name)(2, 3).shape
        assert gt.FloatTensor().shape == (0,)


def test_random_state_is_saved_and_restored() -> None:
    with gt.testing.cluster():
        gt.manual_seed(3)
        gt.rand(2)
        state = gt.get_rng_state()
        first = [gt.rand(3).tolist() for _ in range(2)]
        gt.manual_seed(9)
        gt.set_rng_state(state)
        assert [gt.rand(3).tolist() for _ in range(2)] == first
        with pytest.raises(ValueError, match="get_rng_state"):
            gt.set_rng_state(gt.zeros(3))


def test_settings_are_given_back() -> None:
    gt.set_float32_matmul_precision("high")
    assert gt.get_float32_matmul_precision() == "high"
    gt.set_float32_matmul_precision("highest")
    with pytest.raises(ValueError, match="highest, high, medium"):
        gt.set_float32_matmul_precision("low")


class Long:
    """A dataset of more elements than memory holds places of."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_a_random_order_of_many_elements_takes_little_memory() -> None:
    with gt.testing.cluster():
        first = list(itertools.islice(iter(gt.data.RandomSampler(Long(10**10))), 2000))
        assert len(set(first)) == 2000 and all(0 <= i < 10**10 for i in first)
        assert 4e9 < np.mean(first) < 6e9 and np.std(first) > 2e9
        drawn = list(itertools.islice(iter(gt.data.RandomSampler(Long(10**10), replacement=True, num_samples=10**9)), 5000))
        assert len(drawn) == 5000 and all(0 <= i < 10**10 for i in drawn)


def test_a_computed_order_has_every_element_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.data import sampler

    monkeypatch.setattr(sampler, "LARGE", 0)
    for n in (1, 2, 5, 4096, 10_007):
        orders = [list(sampler.shuffling(n, np.random.default_rng(seed))) for seed in (0, 1)]
        assert sorted(orders[0]) == list(range(n))
        if n > 100:
            assert orders[0] != orders[1] and abs(np.corrcoef(orders[0], range(n))[0, 1]) < 0.05


def test_replicas_share_one_order() -> None:
    both = [gt.data.DistributedSampler(range(7), 2, rank, seed=4) for rank in (0, 1)]
    drawn = list(itertools.chain(*both))
    assert set(drawn) == set(range(7)) and len(drawn) == 8 and len(both[0]) == 4  # one is repeated, to make it even
    order = {epoch: (both[0].set_epoch(epoch), list(both[0]))[1] for epoch in range(4)}
    assert len({tuple(o) for o in order.values()}) > 1
    with pytest.raises(ValueError, match="rank is 2"):
        gt.data.DistributedSampler(range(4), 2, 2)


def test_datasets_side_by_side_and_streams_in_a_row() -> None:
    with gt.testing.cluster():
        stacked = gt.data.StackDataset([1, 2], [3, 4])
        assert stacked[1] == (2, 4) and len(stacked) == 2
        assert gt.data.StackDataset(a=[1], b=[2])[0] == {"a": 1, "b": 2}
        assert list(gt.data.ChainDataset([[1, 2], [3]])) == [1, 2, 3]
        assert gt.data.default_convert({"a": np.ones(2)})["a"].tolist() == [1.0, 1.0] and gt.data.get_worker_info() is None
        with pytest.raises(ValueError, match="one length"):
            gt.data.StackDataset([1], [1, 2])
