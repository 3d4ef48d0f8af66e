"""Checkpoints of torch.save, read without running anything they hold."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.files import torch_zip

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


def described(size: int, stride: int, storage: bytes, times: int = 1) -> io.BytesIO:
    """So many tensors of one axis over one storage of float32."""
    rebuild, kept = b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n"
    named = b"(X\x07\0\0\0storage" + kept + b"X\x01\0\0\x000X\x03\0\0\0cpuK\x01tQq\0"
    numbers = b"K\0" + b"".join(b"\x8a\x08" + n.to_bytes(8, "little") + b"\x85" for n in (size, stride))
    one = rebuild + b"(h\0" + numbers + b"\x89NtR"
    return saved(b"\x80\x02" + named + b"](" + one * times + b"e.", storage)


def doubled(depth: int) -> bytes:
    """A pickled value of a few bytes a level, whose hash and text take twice as long with each."""
    return b"K\x01" + b"q\x00h\x00\x86" * depth


def test_tensors_that_are_described_come_back() -> None:
    [found, again] = gt.load(described(2, 1, b"\0\0\x80?\0\0\0@", 2))
    assert found.tolist() == again.tolist() == [1, 2]


@pytest.mark.parametrize(("size", "stride", "storage"), [
    (1, 1, b""), (5, 0, b""),  # bytes and an empty storage
    (3, 1, b"\0" * 8), (1, 1, b"\0" * 3),
])  # fmt: skip
def test_no_byte_is_read_that_is_not_the_storage_s(size: int, stride: int, storage: bytes) -> None:
    with pytest.raises(ValueError, match="outside its storage"):
        gt.load(described(size, stride, storage))


@pytest.mark.parametrize(("size", "stride", "storage", "times"), [
    (1 << 25, 0, b"\0" * 4, 1),  # 128 MB out of an element
    (1 << 18, 1, b"\0" * (1 << 20), 70),  # copies of a storage, each for 40 bytes of a pickle
])  # fmt: skip
def test_tensors_have_no_more_bytes_than_a_file_of_its_size_explains(
    size: int, stride: int, storage: bytes, times: int
) -> None:
    with pytest.raises(ValueError, match="the tensors of this checkpoint have more than 67108864 bytes"):
        gt.load(described(size, stride, storage, times))


def test_sizes_that_no_tensor_has_are_not_multiplied() -> None:
    with pytest.raises(ValueError, match="whole numbers up to"):
        gt.load(described(1 << 63, 1, b"\0" * 4))


def test_a_compressed_part_is_not_unpacked() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a/data.pkl", b"\0" * (1 << 20))
    file.seek(0)
    with pytest.raises(ValueError, match="is compressed"):
        gt.load(file)


def test_parts_that_lie_over_one_another_are_not_read_again_and_again() -> None:
    """Each of 20 parts is all that follows its header in the file, the others' headers with it."""
    stores = b"".join(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x02\0\0\0%02dX\x03\0\0\0cpuK\x01tQ" % n for n in range(20))
    pickled = b"\x80\x02](" + stores + b"e."
    first = local("a/data.pkl", zlib.crc32(pickled), len(pickled)) + pickled
    data, sizes = b"\0" * 10_000, []
    for n in reversed(range(20)):
        sizes.append((f"a/data/{n:02d}", zlib.crc32(data), len(data)))
        data = local(*sizes[-1]) + data
    end = len(first) + len(data)
    entries = [central(name, crc, size, end - size - len(local(name, crc, size))) for name, crc, size in sizes]
    entries.append(central("a/data.pkl", zlib.crc32(pickled), len(pickled), 0))
    directory = b"".join(entries)
    last = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 21, 21, len(directory), end, 0)
    with pytest.raises(ValueError, match="the parts of this checkpoint have more than|checkpoint is damaged: .*Overlapped"):
        gt.load(io.BytesIO(first + data + directory + last))


def local(name: str, crc: int, size: int) -> bytes:
    """A part's header in a zip."""
    return b"PK\3\4" + struct.pack("<HHHHHLLLHH", 20, 0, 0, 0, 33, crc, size, size, len(name), 0) + name.encode()


def central(name: str, crc: int, size: int, at: int) -> bytes:
    """A part's entry in the directory of a zip."""
    middle = struct.pack("<HHHHHHLLLHHHHHLL", 20, 20, 0, 0, 0, 33, crc, size, size, len(name), 0, 0, 0, 0, 0, at)
    return b"PK\1\2" + middle + name.encode()


@pytest.mark.parametrize("pickled", [
    b"}" + doubled(22) + b"Ns.", b"}(" + doubled(22) + b"Nu.", b"\x8f(" + doubled(22) + b"\x90.",
    b"cbuiltins\nset\n](" + doubled(22) + b"e\x85R.", b"ccollections\nOrderedDict\n](" + doubled(22) + b"N\x86e\x85R.",
])  # fmt: skip
def test_keys_are_scalars_as_the_hash_of_values_in_values_takes_any_time(pickled: bytes) -> None:
    with pytest.raises(ValueError, match="a key of type tuple"):
        gt.load(saved(b"\x80\x04" + pickled))


def test_keys_that_state_dicts_have_are_read() -> None:
    things = {"a": 1, 2: 3, (0, "x"): 4, None: {1, "b"}, b"c": 5.0, True: OrderedDict([(1, 2), ("k", 3)])}
    found = gt.load(saved(pickle.dumps(things, protocol=2)))
    assert found == things


@pytest.mark.parametrize("pickled", [
    doubled(22) + b"Q.", doubled(22) + b")R.", b"ctorch\ndevice\n" + doubled(22) + b"\x85R.",
    b"ctorch._utils\n_rebuild_tensor_v2\n(N" + doubled(22) + b"h\0K\0tR.",
])  # fmt: skip
def test_errors_do_not_print_the_contents_of_a_file(pickled: bytes) -> None:
    with pytest.raises(ValueError) as refused:
        gt.load(saved(b"\x80\x04" + pickled))
    assert len(str(refused.value)) < 200


class Counted(list):
    """A stack that counts the elements that are read, and has no search."""

    read = 0

    def pop(self, i: Any = -1) -> Any:
        self.read += 1
        return super().pop(i)

    def __getitem__(self, i: Any) -> Any:
        found = super().__getitem__(i)
        self.read += len(found) if isinstance(i, slice) else 1
        return found

    index = __iter__ = __reversed__ = __contains__ = None  # type: ignore[assignment]


def test_the_steps_to_read_a_pickle_grow_with_its_length() -> None:
    """Pairs of a mark and an empty tuple above many values: a search for the mark must not go through the values."""
    machine = torch_zip.Machine(lambda _: pytest.fail("there is no tensor"))
    machine.stack = stack = Counted()
    assert machine.run(b"\x80\x02(" + b"N" * 1000 + b"(t0" * 1000 + b"t.") == (None,) * 1000
    assert 3000 <= stack.read < 5000


def test_only_containers_are_written_to() -> None:
    for pickled in (b"X\x01\0\0\0aNa.", b"](K\x01K\x01u.", b"NK\x01K\x01s.", b"}(K\x01\x90."):
        with pytest.raises(ValueError, match="is damaged: TypeError expected a"):
            gt.load(saved(b"\x80\x04" + pickled))


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
