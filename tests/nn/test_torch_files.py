"""Checkpoints of torch.save, read without running anything they hold."""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def same(own: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert isinstance(own, gt.Tensor) and own.requires_grad == theirs.requires_grad
        found = own.detach().torch()
        assert found.dtype == theirs.dtype and torch.equal(found, theirs.detach())
    elif isinstance(theirs, dict):
        assert list(own) == list(theirs)
        for key in theirs:
            same(own[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert type(own) is (tuple if isinstance(theirs, tuple) else list) and len(own) == len(theirs)
        for a, b in zip(own, theirs):
            same(a, b)
    else:
        assert own == theirs and type(own) is type(theirs)


def through(thing: Any, **keywords: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return gt.load(file, **keywords)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_layout_and_size(dtype: str) -> None:
    base = (torch.randn(4, 6) * 5).to(getattr(torch, dtype))
    things = [base, base.t(), base[1:3, ::2], base[0, 0], base[:, :0], base[1].expand(3, 6), torch.nn.Parameter(torch.ones(2))]
    same(through(things), things)


def test_a_state_dict_and_an_optimizers_state(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.25, "name": "run",
             "none": None, "flag": True, "large": 1 << 70, "sizes": (1, [2, (3,)]), "bytes": b"ab",
             5: OrderedDict(a=1)}  # fmt: skip
    torch.save(state, tmp_path / "a.pt")
    found = gt.load(tmp_path / "a.pt", map_location="cpu", weights_only=True)
    same(found, state)
    own = gt.nn.Sequential(gt.nn.Linear(4, 3), gt.nn.BatchNorm1d(3))
    own.load_state_dict(found["model"])
    mine = gt.optim.AdamW(own.parameters())
    mine.load_state_dict(found["optimizer"])
    assert torch.equal(own[0].weight.detach().torch(), model[0].weight.detach())


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


def test_code_in_a_checkpoint_is_refused_and_not_run(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ValueError, match="builtin.*print"):
        through({"a": torch.ones(2), "b": Evil()})
    with pytest.raises(ValueError, match=r"torch.nn.modules.linear.Linear.*state_dict"):
        through(torch.nn.Linear(2, 2))
    assert "code ran" not in capsys.readouterr().out


def test_weights_only_false_is_told_to_be_without_effect() -> None:
    with pytest.warns(UserWarning, match="never runs code"):
        same(through([1, 2], weights_only=False), [1, 2])


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("readme", "hello")
    with pytest.raises(ValueError, match="no data.pkl"):
        gt.load(tmp_path / "a.zip")
    torch.save([1], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="before PyTorch 1.6"):
        gt.load(tmp_path / "old.pt")


def saved(pickled: bytes, storage: bytes = b"") -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/data.pkl", pickled)
        made.writestr("a/data/0", storage)
    file.seek(0)
    return file


def test_strides_that_leave_the_storage_are_refused() -> None:
    whole = io.BytesIO()
    torch.save(torch.arange(6.0).reshape(2, 3), whole)
    with zipfile.ZipFile(whole) as file:
        pickled = file.read("archive/data.pkl")
    assert b"K\x02K\x03\x86" in pickled
    with pytest.raises(ValueError, match="outside its storage"):
        gt.load(saved(pickled.replace(b"K\x02K\x03\x86", b"K\x7fK\x7f\x86"), b"\0" * 24))


@settings(max_examples=300)
@given(st.data())
def test_damaged_pickles_are_errors_and_nothing_else(data: Any) -> None:
    """Any bytes changed in a real pickle: a value comes back, or a ValueError; no code runs and nothing hangs."""
    pickled = bytearray(pickle.dumps({"a": [1, 2.5, "x", None, (True, b"b")], "b": OrderedDict(c=3)}, protocol=2))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        gt.load(saved(bytes(pickled)))
