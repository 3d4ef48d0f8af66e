"""Checkpoints that `torch.save` wrote, read without PyTorch and without running anything they hold.

Such a file is a zip of a pickle and of the storages' bytes. The pickle is gone through opcode by opcode with a table of the few
callables that state dicts and plain containers are made of; anything else in it is refused by name. Memory and time are bounded
by the size of the file: the bytes that are read, the memory of its tensors, and the keys of dicts, since a value of values that
name one another twice has a hash, and a text, of any length."""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gt.client.arrays import loaded
from gt.client.autograd import Tensor
from gt.spec import DType, dtype_of

STORAGES = {"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
            "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
            "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8"}  # fmt: skip
COPIES = 16  # times the file's bytes that its tensors may have: each has a copy of its part, and many may share a storage
AT_LEAST = 64 << 20  # bytes that they may have in any file: a stride of zero repeats an element
SCALARS = (str, int, float, bytes, type(None))


Container = TypeVar("Container", list, dict, set)


class UnsafeCheckpoint(ValueError):
    """The file holds objects other than tensors, numbers, strings, dicts and lists."""


class StorageType(NamedTuple):
    """A class of storages, or a dtype, as the pickle names it."""

    dtype: DType


class Room:
    """The bytes that something of one file may have in all."""

    def __init__(self, what: str, most: int) -> None:
        self.what, self.most, self.left = what, most, most

    def take(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise ValueError(f"{self.what} of this checkpoint have more than {self.most} bytes, for a file of its size")


class Storage(NamedTuple):
    """A run of bytes of the file, to be read as elements of a dtype."""

    data: bytes
    dtype: DType
    room: Room  # of all tensors


def _tensor(storage: Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
    """Elements of a storage, in the order of their indices. Strides may be any that stay inside it."""
    width = storage.dtype.size
    raw = np.frombuffer(storage.data, np.uint8)[: len(storage.data) // width * width].reshape(-1, width)
    if (
        len(size) != len(stride)
        or len(size) > 64
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in (offset, *size, *stride))
    ):
        raise ValueError(
            f"invalid tensor of {len(size)} axes and {len(stride)} strides: expected as many, of whole numbers up to 2**62"
        )
    if 0 not in size and offset + sum((n - 1) * s for n, s in zip(size, stride)) >= len(raw):
        raise ValueError(f"a tensor of shape {size} and strides {stride} is outside its storage of {len(raw)} elements")
    storage.room.take(math.prod(size) * width)
    if 0 in size:
        found = np.empty((*size, width), np.uint8)
    else:
        found = np.lib.stride_tricks.as_strided(raw[offset:], (*size, width), (*(s * width for s in stride), 1))
    return loaded(np.ascontiguousarray(found).reshape(-1), tuple(size), storage.dtype)


def _parameter(data: Tensor, requires_grad: bool, *_: Any) -> Tensor:
    return data.requires_grad_() if requires_grad else data


def _ordered(pairs: Any = ()) -> OrderedDict:
    return OrderedDict((_key(key), value) for key, value in pairs)


def _device(name: str, index: int | None = None) -> str:
    if not isinstance(name, str) or not isinstance(index, (int, type(None))):
        raise TypeError(f"invalid device of {type(name).__name__} and {type(index).__name__}: expected str and int")
    return name if index is None else f"{name}:{index}"


def _key(key: Any) -> Any:
    """A key of a dict, or an item of a set."""
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, (*SCALARS, StorageType)) for part in parts):
        raise UnsafeCheckpoint(f"this checkpoint has a key of type {type(key).__name__}: expected strings, numbers and bytes")
    return key


CALLABLES: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch._tensor _rebuild_from_type_v2": lambda make, _kind, args, _state: make(*args),
    "collections OrderedDict": _ordered,
    "collections defaultdict": lambda *_: {},
    "torch Size": lambda size=(): tuple(size),
    "torch device": _device,
    "_codecs encode": lambda text, _name="latin1": text.encode("latin1"),
    "builtins set": lambda items=(): set(map(_key, items)),
    "__builtin__ set": lambda items=(): set(map(_key, items)),
}
CLASSES = {"torch._tensor Tensor", "torch Tensor", "torch.nn.parameter Parameter"}


def _named(name: str) -> Any:
    """The object of a global of the pickle."""
    if name in CALLABLES:
        return CALLABLES[name]
    module, _, what = name.rpartition(" ")
    if module in ("torch", "torch.storage") and what in STORAGES:
        return StorageType(dtype_of(STORAGES[what]))
    if module == "torch" and what in DType.all:
        return StorageType(DType.all[what])
    if name in CLASSES:
        return name
    held, known = name[:200].replace(" ", "."), "tensors, numbers, strings, dicts, lists and tuples"
    raise UnsafeCheckpoint(f"this checkpoint holds {held}: only {known} are read, as code in files is not run. "
                           "Save `model.state_dict()` instead of the model")  # fmt: skip


MARK = object()
SIMPLE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "EMPTY_SET": set, "MARK": lambda: MARK,
}  # fmt: skip
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED = {"PROTO", "FRAME"}


class Machine:
    """The stack of values and the memo of one pickle."""

    def __init__(self, storage: Callable[[tuple], Storage]) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storage = storage

    def marked(self) -> list[Any]:
        """Pop the items above the last mark, and the mark."""
        found = []
        while (value := self.stack.pop()) is not MARK:
            found.append(value)
        return found[::-1]

    def last(self, container: type[Container]) -> Container:
        """The container that the next opcode adds to."""
        found = self.stack[-1]
        if not isinstance(found, container):
            raise TypeError(f"expected a {container.__name__}, got {type(found).__name__}")
        return found

    def run(self, pickle: bytes) -> Any:
        for opcode, value, _ in pickletools.genops(pickle):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in SIMPLE:
                self.stack.append(SIMPLE[name]())
            elif name in TUPLES:
                self.stack[-TUPLES[name] :] = [tuple(self.stack[-TUPLES[name] :])]
            elif opcode.arg is not None and opcode.stack_before == [] and len(opcode.stack_after) == 1 and "GET" not in name \
                    and name != "GLOBAL":  # fmt: skip
                self.stack.append(value)  # a number or a string
            elif name not in IGNORED:
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise UnsafeCheckpoint(f"this checkpoint uses the pickle opcode {name}, which no state dict needs")
                step(value)
        raise ValueError("the pickle in this checkpoint (data.pkl) has no STOP opcode: the file is cut off or damaged")

    def _global(self, value: str) -> None:
        self.stack.append(_named(value))

    def _stack_global(self, _: Any) -> None:
        name = self.stack.pop()
        self.stack.append(_named(f"{self.stack.pop()} {name}"))

    def _reduce(self, _: Any) -> None:
        args, make = self.stack.pop(), self.stack.pop()
        if not callable(make) or isinstance(make, StorageType):
            raise UnsafeCheckpoint(
                f"this checkpoint calls a {type(make).__name__}, and code in files is not run: save a state dict"
            )
        self.stack.append(make(*args))

    def _build(self, _: Any) -> None:
        self.stack.pop()  # attributes of a container or a parameter, such as a state dict's version

    def _binpersid(self, _: Any) -> None:
        self.stack.append(self.storage(self.stack.pop()))

    def _binput(self, value: int) -> None:
        self.memo[value] = self.stack[-1]

    _long_binput = _put = _binput

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binget(self, value: int) -> None:
        self.stack.append(self.memo[value])

    _long_binget = _get = _binget

    def _pop(self, _: Any) -> None:
        self.stack.pop()

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.marked()))

    def _appends(self, _: Any) -> None:
        items = self.marked()
        self.last(list).extend(items)

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        self.last(list).append(item)

    def _setitems(self, _: Any) -> None:
        items = self.marked()
        self.last(dict).update(zip(map(_key, items[::2]), items[1::2]))

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.last(dict)[_key(key)] = value

    def _additems(self, _: Any) -> None:
        items = self.marked()
        self.last(set).update(map(_key, items))


class Archive:
    """The parts of a file, of which no more is read than the file is long: entries of a zip may overlap."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        assert file.fp is not None
        self.file, size = file, file.fp.seek(0, 2)
        self.read, self.tensors = Room("the parts", size), Room("the tensors", max(COPIES * size, AT_LEAST))
        names = file.namelist()
        found = next((n for n in names if n.endswith("/data.pkl") or n == "data.pkl"), None)
        if found is None:
            raise ValueError("this zip file is no checkpoint of PyTorch's: it has no data.pkl")
        self.folder = found[: -len("data.pkl")]
        if f"{self.folder}byteorder" in names and self.part("byteorder") != b"little":
            raise ValueError("this checkpoint was written on a big-endian machine, which is not supported")
        self.seen: dict[str, bytes] = {}

    def part(self, name: str) -> bytes:
        about = self.file.getinfo(f"{self.folder}{name}")
        if about.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name[:100]} in this checkpoint is compressed, which torch.save does not do")
        self.read.take(about.file_size)
        return self.file.read(about)

    def storage(self, told: tuple) -> Storage:
        _, storage_type, key, _device, *_rest = told
        if not isinstance(storage_type, StorageType) or not isinstance(key, str):
            raise UnsafeCheckpoint(f"this checkpoint names a storage by a {type(key).__name__}: expected a dtype and a str")
        if key not in self.seen:
            self.seen[key] = self.part(f"data/{key}")
        return Storage(self.seen[key], storage_type.dtype, self.tensors)


DAMAGE = (
    LookupError,
    AttributeError,
    TypeError,
    UnicodeError,
    OverflowError,
    RecursionError,
    zipfile.BadZipFile,  # Python 3.12 refuses entries that overlap
)  # where the stack lacks something


def read(f: Any) -> Any:
    """The contents of a file of `torch.save`: tensors as GT's, in their containers."""
    with zipfile.ZipFile(f) as file:
        archive = Archive(file)
        try:
            return Machine(archive.storage).run(archive.part("data.pkl"))
        except DAMAGE as broken:
            raise ValueError(f"this checkpoint is damaged: {type(broken).__name__} {broken}") from None
