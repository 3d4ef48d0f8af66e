"""Makes the engine of a backend's name. A backend that computes wrong results here is refused with the registry's reason, or,
if there are fallbacks, skipped with a warning and recorded."""

from __future__ import annotations

import warnings

from gt import backends, environment
from gt.backends.rows import named
from gt.worker.engine import Engine
from gt.worker.engine.custom import CustomEngine
from gt.worker.engine.numpy import NumPyEngine


class RenamedNumPyEngine(NumPyEngine):
    """NumPy under another name: the backend `cpu` without PyTorch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def cpu(name: str) -> Engine:
    """The engine of the backend `cpu`: PyTorch's, or NumPy's if PyTorch is not installed."""
    registry = backends.registry()
    if registry.plain_default() == "numpy":
        return RenamedNumPyEngine(name)
    found: Engine = named(registry.rows["openmp"].engine)(name)
    return found


def _made(name: str) -> Engine:
    registry = backends.registry()
    engine = registry.rows[name].engine
    if not engine:
        return CustomEngine(name, registry.custom_class(name))
    made: Engine = named(engine)(name)
    return made


def has_small_kernels(engine: Engine) -> bool:
    """Whether all its kernels for small tensors are those of `gt.small`, or give the same bits."""
    return engine.name == "pytorch" and engine.small_runs is not None and not environment.AUTO_COMPILE.value()


def make(name: str | None = None, fallbacks: tuple[str, ...] = ()) -> Engine:
    """The engine of a backend, or of the first available fallback. Raises ValueError for an unknown name among any of them, and
    if none is available."""
    registry = backends.registry()
    wanted = [registry.name(n) for n in (name or registry.plain_default(), *fallbacks)]
    found, refused = registry.first(wanted, registry.engine_reason)
    if found is None and len(refused) == 1:
        raise ValueError(f"backend {wanted[0]!r} is not available: {refused[wanted[0]]}")
    why = "; ".join(f"{n}: {r}" for n, r in refused.items())
    if found is None:
        raise ValueError(f"no backend is available: {why}")
    engine = _made(found)
    engine.fell_back = refused
    if refused:
        warnings.warn(f"falling back to backend {found!r}: {why}", RuntimeWarning, stacklevel=3)
    return engine
