"""Saving and loading: safetensors that others read, and the state of optimizers."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import gt
from tests.nn.compare import ENGINES, numbers

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.fixture(params=ENGINES, autouse=True)
def cluster(request):
    with gt.testing.cluster(1, request.param) as made:
        yield made


def _states() -> dict[str, torch.Tensor]:
    made = {name: (torch.randn(3, 4) * 5).to(getattr(torch, name)) for name in DTYPES}
    return {**made, "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "odd": torch.ones(3, dtype=torch.int8)}


def test_a_saved_file_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    states = _states()
    gt.save(gt.from_torch(states), tmp_path / "a.safetensors")
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found.keys() == states.keys()
    for name, value in states.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def test_a_state_dict_keeps_its_order(tmp_path: Path) -> None:
    names = ["z", "b.weight", "a", "b.bias"]
    gt.save({name: gt.ones(i + 1) for i, name in enumerate(names)}, tmp_path / "a.safetensors", {"format": "pt"})
    assert list(gt.load(tmp_path / "a.safetensors")) == names


def test_a_file_of_the_safetensors_library_is_loaded(tmp_path: Path) -> None:
    states = _states()
    safetensors.torch.save_file(states, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = gt.load(tmp_path / "a.safetensors")
    assert found.keys() == states.keys()
    for name, value in states.items():
        assert found[name].dtype.name == str(value.dtype).removeprefix("torch.") and torch.equal(found[name].torch(), value), (
            name
        )


def test_a_tensor_lists_and_numbers_come_back_as_they_were() -> None:
    things = {
        "a": [gt.ones(2), (1, 2.5, None)],
        3: {"x": gt.zeros(1, dtype=gt.bfloat16)},
        "inf": math.inf,
        "t": True,
        "d": gt.int8,
    }
    file = io.BytesIO()
    gt.save(things, file)
    file.seek(0)
    found = gt.load(file)
    assert found["a"][0].tolist() == [1.0, 1.0] and found["a"][1] == (1, 2.5, None) and found["d"] is gt.int8
    assert found[3]["x"].dtype is gt.bfloat16 and found["inf"] == math.inf and found["t"] is True
    assert list(found) == list(things)
    file = io.BytesIO()
    gt.save(gt.arange(3), file)
    file.seek(0)
    assert gt.load(file).tolist() == [0, 1, 2]


def test_training_goes_on_from_a_file(tmp_path: Path) -> None:
    def made():
        gt.manual_seed(0)
        model = gt.nn.Sequential(gt.nn.Linear(4, 3), gt.nn.BatchNorm1d(3))
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.1)
        return model, optimizer, gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def train(model, optimizer, schedule, seed):
        optimizer.zero_grad()
        model(gt.tensor(numbers(8, 4, seed=seed))).square().sum().backward()
        optimizer.step()
        schedule.step()

    first = made()
    for i in range(3):
        train(*first, i)
    gt.save({n: part.state_dict() for n, part in zip(("model", "optimizer", "schedule"), first)}, tmp_path / "run.safetensors")
    second = made()
    for part, state in zip(second, gt.load(tmp_path / "run.safetensors").values()):
        part.load_state_dict(state)
    for i in range(3):
        train(*first, 10 + i)
        train(*second, 10 + i)
    for (name, a), b in zip(first[0].state_dict().items(), second[0].state_dict().values()):
        assert np.array_equal(a.numpy(), b.numpy()), name
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    def entry(**about):
        text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **about}}).encode()
        return len(text).to_bytes(8, "little") + text + bytes(8)

    bad = [b"", b"short", bytes(8) + b"x", (2**60).to_bytes(8, "little") + bytes(64), (4).to_bytes(8, "little") + b"[12]"]
    bad += [entry(data_offsets=[0, 16]), entry(data_offsets=[-8, 0]), entry(shape=[3]), entry(dtype="X9"), entry(shape="ab")]
    bad += [entry(shape=[-2])]
    for i, data in enumerate(bad):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(data)
        with pytest.raises(ValueError, match="no safetensors file|cannot read"):
            gt.load(path)
    assert gt.load(io.BytesIO(entry()))["w"].tolist() == [0.0, 0.0]


def test_objects_that_are_no_data_are_not_saved(tmp_path: Path) -> None:
    for thing in (print, {"a": object()}, {(1, 2): gt.ones(1)}):
        with pytest.raises(TypeError, match="cannot save"):
            gt.save(thing, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_move_to_pytorch_and_back(name: str) -> None:
    value = _states()[name]
    moved = gt.from_torch(value)
    assert moved.dtype.name == name and torch.equal(moved.torch(), value)
    assert gt.from_torch([value, {"x": value}])[1]["x"].dtype.name == name


def test_from_torch_keeps_the_wish_for_gradients_and_refuses_others() -> None:
    assert gt.from_torch(torch.ones(2, requires_grad=True)).requires_grad
    assert not gt.from_torch(torch.ones(2, requires_grad=True), requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="gt.tensor"):
        gt.from_torch(np.ones(2))


def test_without_the_safetensors_package_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        gt.save({"w": gt.ones(1)}, tmp_path / "w.safetensors")
