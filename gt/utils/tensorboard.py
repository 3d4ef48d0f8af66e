"""`torch.utils.tensorboard`: the writer of the package tensorboard (through PyTorch, if it is installed) or tensorboardX, which
is given the values of tensors."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from gt.client.autograd import Tensor
from gt.lazy_import import LazyImport

torch = LazyImport("torch")
WRITERS = (LazyImport("torch.utils.tensorboard"), LazyImport("tensorboardX"))  # each of them needs packages that may be missing

__all__ = ["SummaryWriter"]  # noqa: F822  by __getattr__


def _value(found: Any) -> Any:
    """An argument with NumPy arrays in place of tensors."""
    if isinstance(found, Tensor):
        return found.detach().numpy()
    if type(found) in (list, tuple):
        return type(found)(map(_value, found))
    return {key: _value(v) for key, v in found.items()} if type(found) is dict else found


class Writer:
    """Writes scalars, images, histograms and texts for TensorBoard: `add_scalar` and the others are the package's own methods.
    Reading a tensor waits for it, so log numbers every so many steps.

    ```python
    from gt.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs/first") as writer:
        writer.add_scalar("loss", loss, step)
    ```
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.writer = writer_class()(*args, **settings)

    def __getattr__(self, name: str) -> Any:
        if name == "writer":
            raise AttributeError(name)
        found = getattr(self.writer, name)
        if not callable(found):
            return found
        return lambda *args, **settings: found(*map(_value, args), **{key: _value(v) for key, v in settings.items()})

    def add_tensor(self, tag: str, tensor: Any, *args: Any, **settings: Any) -> None:
        value = _value(tensor)
        if isinstance(self.writer, getattr(sys.modules.get("torch.utils.tensorboard"), "SummaryWriter", ())):
            value = torch.from_numpy(value)  # alone of its methods, PyTorch's takes no array
            if isinstance(tensor, Tensor):
                value = value.to(getattr(torch, tensor.dtype.name))
        self.writer.add_tensor(tag, value, *args, **settings)

    def add_graph(self, model: Any, *args: Any, **settings: Any) -> NoReturn:
        raise NotImplementedError(
            "add_graph draws PyTorch's operators, which a GT model has not: print(gt.debug.programs()[0]) shows its program"
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.writer.close()


def writer_class() -> Any:
    """The SummaryWriter of the first package that is installed."""
    for package in WRITERS:
        try:
            return package.SummaryWriter
        except ImportError:
            continue
    raise ImportError(
        "SummaryWriter needs the package tensorboard (with PyTorch) or tensorboardX: pip install tensorboard, or tensorboardX"
    )


def __getattr__(name: str) -> Any:
    if name != "SummaryWriter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    writer_class()  # as in PyTorch, `from gt.utils.tensorboard import SummaryWriter` fails where no package writes
    return Writer
