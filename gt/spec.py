"""Values that all parts share: dtypes, the shape and dtype of a tensor, and the placement of its pieces. No arrays, no ops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Any, ClassVar, cast
from weakref import ref

Shape = tuple[int, ...]
Scalar = bool | int | float | complex


class DType:
    """A dtype, one object each, so that `is` compares. `rank` orders the kinds: bool < integer < float <
    complex."""

    __slots__ = ("name", "size", "rank", "code")
    all: ClassVar[dict[str, DType]] = {}

    def __init__(self, name: str, size: int, rank: int) -> None:
        self.name, self.size, self.rank = name, size, rank
        self.code = len(self.all)
        self.all[name] = self

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __reduce__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        return self.size

    @property
    def is_floating_point(self) -> bool:
        return self.rank == 2

    @property
    def is_complex(self) -> bool:
        return self.rank == 3

    def to_complex(self) -> DType:
        """The complex dtype whose parts hold this one's numbers."""
        if self.name == "float16":
            raise TypeError("float16 and a complex number would make complex32, which GT does not have: cast to float32 first")
        return self if self.rank == 3 else complex128 if self.name == "float64" else complex64

    def to_real(self) -> DType:
        """The dtype of a complex one's parts; any other is its own."""
        return self if self.rank < 3 else float64 if self.size == 16 else float32

    @property
    def is_signed(self) -> bool:
        return self.name not in ("bool", "uint8")


bool_ = DType("bool", 1, 0)
uint8 = DType("uint8", 1, 1)
int8 = DType("int8", 1, 1)
int16 = DType("int16", 2, 1)
int32 = DType("int32", 4, 1)
int64 = DType("int64", 8, 1)
float16 = DType("float16", 2, 2)
bfloat16 = DType("bfloat16", 2, 2)
float32 = DType("float32", 4, 2)
float64 = DType("float64", 8, 2)
complex64 = DType("complex64", 8, 3)
complex128 = DType("complex128", 16, 3)
DTYPES = tuple(DType.all.values())


_NAMES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
          "cfloat": "complex64", "cdouble": "complex128"}  # fmt: skip
# As PyTorch takes them for dtypes.
_PYTHON: dict[object, DType] = {bool: bool_, int: int64, float: float64, complex: complex128}


def dtype_of(name: object) -> DType:
    """The DType for a DType, a name, a NumPy or PyTorch dtype, or Python's bool, int, float and complex."""
    if isinstance(name, DType):
        return name
    if isinstance(name, type) and name in _PYTHON:
        return _PYTHON[name]
    text = getattr(name, "name", None) or getattr(name, "__name__", None) or str(name)
    text = text.removeprefix("torch.").removeprefix("gt.").rstrip("_")
    text = _NAMES.get(text, text)
    try:
        return DType.all[text]
    except KeyError:
        raise TypeError(f"no dtype {name!r}: known are {', '.join(DType.all)}") from None


def promote_types(a: DType, b: DType) -> DType:
    """The dtype that holds both, as PyTorch promotes: the higher kind wins, then the wider."""
    if a is b:
        return a
    if a.rank != b.rank:
        high, low = (a, b) if a.rank > b.rank else (b, a)
        return complex128 if high is complex64 and low is float64 else high
    if a.rank == 1:
        if uint8 in (a, b):  # an unsigned byte and a signed one only fit into 16 bits
            other = b if a is uint8 else a
            return int16 if other is int8 else other
        return a if a.size >= b.size else b
    if a.size == b.size:  # float16 and bfloat16
        return float32
    return a if a.size > b.size else b


def scalar_dtype(value: Scalar) -> DType:
    """The dtype a Python number brings to a promotion."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, complex):
        return complex64
    return int64 if isinstance(value, int) else float32


class Size(tuple[Any, ...]):
    """A tensor's shape as users see it: a tuple with the number of elements."""

    __slots__ = ()

    def numel(self) -> int:
        return math.prod(self)

    def __add__(self, other: Any) -> Size:
        return Size(tuple(self) + tuple(other))

    def __getitem__(self, at: Any) -> Any:
        found = tuple.__getitem__(self, at)
        return Size(found) if isinstance(at, slice) else found


class Interned(ref[Any]):
    """An entry of a table of interned objects: a weak reference, removed with its object."""

    __slots__ = ("key", "table")
    key: tuple[Any, ...]
    table: dict[tuple[Any, ...], Interned]


def _ended(row: Interned) -> None:
    if row.table.get(row.key) is row:
        del row.table[row.key]


def interned(table: dict[tuple[Any, ...], Interned], key: tuple[Any, ...], made: Any) -> Any:
    """The interned object of this key: `made`, unless another thread was faster."""
    row = Interned(made, _ended)
    row.key, row.table = key, table
    while True:
        kept = table.setdefault(key, row)
        found = kept()
        if found is not None:
            return found
        if table.get(key) is kept:
            table[key] = row


RANK = 64  # axes of a tensor, as many as NumPy and PyTorch have
BYTES = 1 << 62  # of a tensor: sums and products of sizes below it fit into 64 bits


def sizes(shape: Any, dtype: DType) -> Shape:
    """A shape as it is kept: whole numbers from 0 up, no more of them and no more elements than a tensor can have."""
    try:
        found = tuple(int(index(d)) for d in shape)
    except TypeError:
        raise TypeError(f"a shape: expected integers, got {shape!r}") from None
    if len(found) > RANK:
        raise ValueError(f"a tensor has at most {RANK} axes, not {len(found)}")
    n = dtype.size
    for d in found:
        if d < 0:
            raise ValueError(f"no tensor has the shape {found}: sizes are 0 or more, not {d}")
        n *= max(d, 1)
        if n >= BYTES:
            raise ValueError(f"a tensor of shape {found} and dtype {dtype.name} is past {BYTES} bytes, the most there can be")
    return found


class Spec:
    """Shape and dtype. Specs are interned: equal ones are the same object, so they compare and hash at once."""

    __slots__ = ("shape", "dtype", "ndim", "numel", "size", "__weakref__")
    shape: Shape
    dtype: DType
    ndim: int
    numel: int
    size: Size
    _known: ClassVar[dict[tuple[Any, ...], Interned]] = {}

    def __new__(cls, shape: Shape, dtype: DType = float32) -> Spec:
        row = cls._known.get((shape, dtype))
        found: Spec | None = row() if row is not None else None
        if found is None:
            found = object.__new__(cls)
            shape = sizes(shape, dtype)
            object.__setattr__(found, "shape", shape)
            object.__setattr__(found, "size", Size(shape))
            object.__setattr__(found, "ndim", len(shape))
            object.__setattr__(found, "dtype", dtype)
            n = 1
            for d in shape:
                n *= d
            object.__setattr__(found, "numel", n)
            return cast(Spec, interned(cls._known, (shape, dtype), found))
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Spec does not change")

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every worker along this mesh dimension holds the whole."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True, slots=True)
class Shard:
    """The workers along this mesh dimension hold consecutive pieces of `axis`; the first ones may hold one more."""

    axis: int

    def __repr__(self) -> str:
        return f"Shard({self.axis})"


@dataclass(frozen=True, slots=True)
class Partial:
    """The workers along this mesh dimension hold terms; the value is their reduction."""

    reduce: str = "sum"

    def __repr__(self) -> str:
        return "Partial()" if self.reduce == "sum" else f"Partial({self.reduce!r})"


Placement = Replicate | Shard | Partial
REPLICATE = Replicate()


Box = tuple[Shape, Shape]  # where a piece begins in the whole, and its shape


def split(size: int, parts: int, at: int) -> tuple[int, int]:
    """Where piece `at` of an axis cut into `parts` begins, and how long it is: the first ones may be longer by one."""
    each, more = divmod(size, parts)
    return at * each + min(at, more), each + (at < more)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Workers in a grid, row-major: `Mesh((2, 2), (0, 1, 2, 3))`."""

    shape: Shape
    workers: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, {self.workers})"

    def coordinates(self, at: int) -> tuple[int, ...]:
        """The place in the grid of the worker at this position."""
        found = []
        for n in reversed(self.shape):
            at, c = divmod(at, n)
            found.append(c)
        return tuple(reversed(found))

    def lines(self, dim: int) -> list[tuple[int, ...]]:
        """The positions of the workers along a dimension, for each place in the others."""
        step = 1
        for n in self.shape[dim + 1 :]:
            step *= n
        n = self.shape[dim]
        starts = [i for i in range(len(self.workers)) if (i // step) % n == 0]
        return [tuple(i + k * step for k in range(n)) for i in starts]


class Layout:
    """The layout of a tensor: a mesh of workers and, for each of its dimensions, a placement. Interned."""

    __slots__ = ("mesh", "placements", "workers", "solo", "__weakref__")
    mesh: Mesh
    placements: tuple[Placement, ...]
    workers: tuple[int, ...]
    solo: int | None  # the worker, where there is only one
    _known: ClassVar[dict[tuple[Any, ...], Interned]] = {}

    def __new__(cls, mesh: Mesh, placements: tuple[Placement, ...]) -> Layout:
        row = cls._known.get((mesh, placements))
        found: Layout | None = row() if row is not None else None
        if found is None:
            if len(mesh.workers) == 1:  # one way of writing it: equal layouts are the same object
                mesh, placements = Mesh((1,), mesh.workers), (REPLICATE,)
            else:
                placements = tuple(p if n > 1 else REPLICATE for p, n in zip(placements, mesh.shape))
            found = object.__new__(cls)
            found.mesh, found.placements, found.workers = mesh, placements, mesh.workers
            found.solo = mesh.workers[0] if len(mesh.workers) == 1 else None
            return cast(Layout, interned(cls._known, (mesh, placements), found))
        return found

    @staticmethod
    @cache
    def on(worker: int) -> Layout:
        """Whole, on one worker."""
        return Layout(Mesh((1,), (worker,)), (REPLICATE,))

    def __repr__(self) -> str:
        return f"{', '.join(map(repr, self.placements))} on {list(self.workers)}"

    @property
    def partial(self) -> bool:
        return any(isinstance(p, Partial) for p in self.placements)

    def box(self, shape: Shape, at: int) -> Box:
        """The piece that the worker at this position holds."""
        start, size = [0] * len(shape), list(shape)
        for c, n, p in zip(self.mesh.coordinates(at), self.mesh.shape, self.placements):
            if isinstance(p, Shard):
                first, length = split(size[p.axis], n, c)
                start[p.axis] += first
                size[p.axis] = length
        return tuple(start), tuple(size)

    def boxes(self, shape: Shape) -> list[Box]:
        """The piece of each worker, in the mesh's order."""
        if not any(isinstance(p, Shard) for p in self.placements):
            return [((0,) * len(shape), shape)] * len(self.workers)
        return [self.box(shape, at) for at in range(len(self.workers))]

    def but(self, dim: int, placement: Placement) -> Layout:
        """The same with another placement along one dimension."""
        return Layout(self.mesh, (*self.placements[:dim], placement, *self.placements[dim + 1 :]))
