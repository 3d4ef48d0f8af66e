"""Values on the workers, as the client knows them, and the kinds of ops that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gt.client.native import NATIVE
from gt.ops.table import Kind
from gt.program.code import free
from gt.spec import Spec

if TYPE_CHECKING:
    from gt.client.session import Session


class Known:
    """A kind this session has defined, and what the client's hot path wants of it."""

    __slots__ = ("number", "kind", "out", "outs", "row", "differentiable", "pulls", "view", "unseen")

    def __init__(self, number: int, kind: Kind) -> None:
        self.number, self.kind, self.row, self.outs, self.out = number, kind, kind.row, kind.outs, kind.outs[0]
        self.differentiable = kind.row.grad is not None and self.out.dtype.rank >= 2
        self.pulls: dict[Any, Any] = {}  # the tape's plans, by which inputs want gradients
        self.view = kind.row.alias is not None
        self.unseen = Restricted(self, NO_GRAD) if self.view else None


NO_GRAD = (
    "a view that was made in no_grad mode is being changed in place with grad mode enabled: make the view and change it "
    "both inside of no_grad(), or both outside"
)


class Restricted:
    """How a view was made that cannot be changed in place where gradients are wanted, and why."""

    __slots__ = ("known", "why")

    def __init__(self, known: Known, why: str) -> None:
        self.known, self.why = known, why


class Handle(msgspec.Struct, gc=False, eq=False):
    """A value on the workers. It never changes, and is freed when its last user lets go. (A Struct is made in a third of the
    time of a plain object, and one is made for every op.)"""

    id: int
    spec: Spec
    session: Session
    source: int | None = None  # of the value of a view: the id of the value of the last base

    def __del__(self) -> None:
        self.session.emit(free(self.id))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        return self.spec.dtype

    def numpy(self) -> np.ndarray:
        """The value, read from where it lies."""
        return self.session.read(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self.spec.dtype.name}{list(self.spec.shape)} on the workers>"


def origin_id(handle: Handle) -> int:
    """The id that stands for the memory this value would have in PyTorch: its own, or of a view's value that of the base's."""
    return handle.source or handle.id


if NATIVE is not None:
    for _name in ("shape", "dtype", "numpy", "__array__", "__repr__"):
        setattr(NATIVE.Handle, _name, vars(Handle)[_name])
    Handle = NATIVE.Handle  # type: ignore[misc]


def as_numpy(data: np.ndarray, spec: Spec) -> np.ndarray:
    """Received bytes as an array; bfloat16, which NumPy lacks, widened to float32."""
    if spec.dtype.name == "bfloat16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(spec.shape)
    if not data.flags.writeable:
        data = data.copy()
    return data.view(np.ndarray).view(spec.dtype.name).reshape(spec.shape)
