"""From a backend's name to its engine. A backend that does not compute the right numbers here is refused with the registry's
reason, or, where fallbacks are named, passed over with a warning and recorded."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable

from gt import backends
from gt.worker.engine import Engine
from gt.worker.engine.numpy import NumPyEngine

# The module that makes each engine, by `make(name)`.
FILES = {
    "numpy": "numpy",
    "cpp": "own_kernels",
    "opencl": "own_kernels",
    "pytorch": "torch",
    **dict.fromkeys(("cpu", "cuda", "cudnn", "openmp", "mkl", "mkldnn", "triton"), "torch.library"),
}
UNPROBED = ("numpy", "pytorch")  # the engines that others are measured against, and GT's defaults


def default_name() -> str:
    """PyTorch when it can be imported, else NumPy."""
    return "pytorch" if importlib.util.find_spec("torch") else "numpy"


def _reason(name: str) -> str | None:
    """Why there is no such engine here."""
    if name in UNPROBED:
        missing = name == "pytorch" and importlib.util.find_spec("torch") is None
        return "torch is not installed" if missing else None
    if reason := backends.reason_unavailable(name):
        return reason
    if name not in FILES and backends.custom_class(name) is None:
        return f"GT has no engine for {name}"
    return None


class Plain(NumPyEngine):
    """NumPy under another name: the CPU where there is no PyTorch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _made(name: str) -> Engine:
    if name == "cpu" and default_name() == "numpy":
        return Plain(name)
    if name in FILES:
        make: Callable[[str], Engine] = importlib.import_module(f"gt.worker.engine.{FILES[name]}").make
        return make(name)
    from gt.worker.engine.custom import CustomEngine

    return CustomEngine(name, backends.custom_class(name))


def choose(name: str | None = None, fallbacks: tuple[str, ...] = ()) -> Engine:
    """Raises ValueError for an unknown name among any of them, and where none can be had."""
    wanted = [backends.known_name(n) for n in (name or default_name(), *fallbacks)]
    refused: dict[str, str] = {}
    for asked in wanted:
        if reason := _reason(asked):
            refused[asked] = reason
            continue
        engine = _made(asked)
        engine.fell_back = refused
        if refused:
            why = "; ".join(f"{n}: {r}" for n, r in refused.items())
            warnings.warn(f"falling back to backend {asked!r}: {why}", RuntimeWarning, stacklevel=3)
        return engine
    if len(refused) == 1:
        raise ValueError(f"backend {wanted[0]!r} is not available: {refused[wanted[0]]}")
    raise ValueError("no backend is available: " + "; ".join(f"{n}: {r}" for n, r in refused.items()))
