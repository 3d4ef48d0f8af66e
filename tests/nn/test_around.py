"""Names that scripts import and settings that they make: modules by PyTorch's names, sizes, tensor types, samplers."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt


@pytest.fixture
def alone():
    with gt.testing.cluster():
        yield


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


IMPORTS = """nn.modules.activation ReLU MultiheadAttention; nn.modules.batchnorm _BatchNorm; nn.modules.conv _ConvNd Conv2d
nn.modules.loss _Loss _WeightedLoss TripletMarginLoss; nn.modules.linear NonDynamicallyQuantizableLinear
nn.modules.module Module
nn.modules.normalization LayerNorm; nn.modules.padding ReplicationPad2d; nn.modules.pooling MaxPool2d
nn.modules.rnn LSTM RNNBase
nn.modules.distance PairwiseDistance; nn.modules.dropout Dropout; nn.modules.transformer TransformerEncoderLayer
nn.modules.utils _pair
nn.modules.sparse Embedding; nn.modules.upsampling Upsample; nn.modules Linear Sequential; nn.common_types _size_2_t
nn.utils.clip_grad clip_grad_norm_; nn.utils.convert_parameters parameters_to_vector; nn.utils.weight_norm weight_norm
nn.utils.spectral_norm spectral_norm; nn.parallel.distributed DistributedDataParallel
nn.parallel.data_parallel DataParallel
optim.adam Adam; optim.adamw AdamW; optim.sgd SGD; optim.rmsprop RMSprop; optim.lbfgs LBFGS; optim.optimizer Optimizer
optim.lr_scheduler LambdaLR _LRScheduler; autograd.grad_mode no_grad; autograd.gradcheck gradcheck
autograd.function Function
amp.grad_scaler GradScaler; amp.autocast_mode autocast; cuda.amp.grad_scaler GradScaler; cuda.amp.autocast_mode autocast
types Number Device _size; functional einsum Tensor norm; signal.windows hann gaussian
utils.data._utils.collate default_collate
distributions.normal Normal; distributions.categorical Categorical"""


@pytest.mark.parametrize("line", [line.strip() for part in IMPORTS.splitlines() for line in part.split(";")])
def test_names_import_from_pytorchs_files(line: str) -> None:
    path, *names = line.split()
    for root in ("torch", "gt"):
        found = importlib.import_module(f"{root}.{path}")
        assert all(hasattr(found, name) for name in names)


def test_a_function_of_the_same_name_as_its_file_stays_a_function() -> None:
    assert callable(gt.nn.utils.weight_norm) and callable(gt.autograd.gradcheck) and callable(gt.nn.utils.spectral_norm)


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


@pytest.mark.usefixtures("alone")
def test_a_summary_writer_is_given_the_values_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match="pip install tensorboard"):
        from gt.utils.tensorboard import SummaryWriter
    written: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.log_dir = folder

        def add_scalars(self, *args: Any, **settings: Any) -> None:
            written.append((args, settings))

        def close(self) -> None:
            written.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    from gt.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:
        writer.add_scalars("loss", {"a": gt.ones(2, requires_grad=True).sum()}, global_step=gt.tensor(3))
        assert writer.log_dir == "runs"
        with pytest.raises(NotImplementedError, match="gt.debug.programs"):
            writer.add_graph(gt.nn.Linear(1, 1))
    [(args, settings), closed] = written
    assert args == ("loss", {"a": 2.0}) and isinstance(args[1]["a"], np.ndarray)
    assert settings == {"global_step": 3} and closed == "closed"


@pytest.mark.usefixtures("alone")
def test_a_profile_counts_ops_in_the_steps_of_its_schedule(tmp_path: Path) -> None:
    with gt.profiler.profile(activities=[gt.profiler.ProfilerActivity.CPU]) as prof, gt.profiler.record_function("step"):
        gt.ones(2, 2) @ gt.ones(2, 2)
    assert {e.key: e.count for e in prof.key_averages()} == {"full": 2, "matmul": 1}
    table = prof.key_averages().table(sort_by="count", row_limit=1).splitlines()
    assert len(table) == 2 and table[1].split()[:2] == ["full", "2"]
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events] == ["full", "full", "matmul"] and all(e["dur"] > 0 for e in events)
    plan: dict[str, Any] = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 1}
    ours, theirs = gt.profiler.schedule(**plan), torch.profiler.schedule(**plan)
    assert [ours(i).name for i in range(12)] == [theirs(i).name for i in range(12)]
    seen: list[list[int]] = []
    ready = lambda p: seen.append([p.step_num, sum(e.count for e in p.key_averages())])  # noqa: E731
    with gt.profiler.profile(schedule=ours, on_trace_ready=ready) as prof:
        for _ in range(12):
            gt.ones(2).sum().item()
            prof.step()
    assert seen == [[5, 4], [9, 4]]
    with pytest.raises(NotImplementedError, match="export_chrome_trace"):
        gt.profiler.tensorboard_trace_handler("runs")


def test_the_error_of_onnx_export_names_the_alternative() -> None:
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


@pytest.mark.usefixtures("alone")
def test_printing_follows_the_options() -> None:
    values = [1.23456, 1e-6]
    for options in (
        {"precision": 2, "sci_mode": False},
        {"sci_mode": True},
        {"edgeitems": 1, "threshold": 1},
        {"profile": "short"},
    ):
        found = []
        for m in (gt, torch):
            m.set_printoptions(**options)
            try:
                found.append(repr(m.tensor(values)) + repr(m.arange(8)) + repr(m.tensor([1.0, 2.0])))
            finally:
                m.set_printoptions(profile="default")
        assert found[0] == found[1], options
    assert repr(gt.tensor(values)) == repr(torch.tensor(values))
    with pytest.raises(ValueError, match="no profile 'tall'"):
        gt.set_printoptions(profile="tall")


@pytest.mark.usefixtures("alone")
def test_names_that_scripts_use_around_their_tensors_are_there() -> None:
    for file, kind in (("normal", "Normal"), ("categorical", "Categorical")):
        assert getattr(importlib.import_module(f"gt.distributions.{file}"), kind) is getattr(gt.distributions, kind)
    from gt.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.MATH]):
        assert not gt.xpu.is_available() and not gt.mps.is_available()
    leaf = gt.autograd.Variable(gt.ones(2), requires_grad=True)
    (leaf * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0] and isinstance(gt.ones(1), gt.autograd.Variable)
    assert gt.jit.script(leaf) is leaf and not gt.jit.is_scripting()
    assert isinstance(gt.cuda.FloatTensor([1.0]), gt.FloatTensor) and gt.cuda.max_memory_allocated() == 0
    assert [gt.is_nonzero(gt.tensor([2])), gt.is_same_size(gt.ones(2), gt.ones(3))] == [True, False]
    assert [m.typename(m.ones(1).long()).split(".")[1] for m in (gt, torch)] == ["LongTensor"] * 2
    for m in (gt, torch):
        kept = m.nn.init.sparse_(m.empty(4, 3), 0.5) != 0
        assert kept.sum(0).tolist() == [2, 2, 2]
        packed = m.nn.utils.rnn.pack_sequence([m.ones(3), m.ones(2)])
        assert [len(x) for x in m.nn.utils.rnn.unpack_sequence(packed)] == [3, 2]


@pytest.mark.usefixtures("alone")
def test_a_fork_of_the_random_numbers_draws_none_of_those_behind_it() -> None:
    for m in (gt, torch):
        m.manual_seed(3)
        want = m.rand(2).tolist()
        m.manual_seed(3)
        with m.random.fork_rng(devices=[]):
            m.rand(5)
        assert m.rand(2).tolist() == want


@pytest.mark.parametrize("name, why", [("complex32", "complex64"), ("hash_tensor", "uint64"), ("uint16", "tensors are of bool"),
                                       ("qint8", "no quantized"), ("hub", "gt.load"), ("nothing_known", "")])  # fmt: skip
def test_the_error_of_a_missing_name_has_its_reason(name: str, why: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}.*{why}"):
        getattr(gt, name)


def test_one_process_is_spawned_here_and_more_are_refused() -> None:
    ranks: list[int] = []
    gt.multiprocessing.spawn(ranks.append, nprocs=1)
    assert ranks == [0]
    with pytest.raises(NotImplementedError, match="one GT script drives all workers"):
        gt.multiprocessing.spawn(ranks.append, nprocs=2)
