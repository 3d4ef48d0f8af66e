"""The backends GT knows, and which of them compute right numbers here.

A backend is available if a probe ran the right numbers through its library in this environment; importing proves
nothing. A probe runs at the first request for its backend, once a process. Engines decide which ops a worker runs on it.
"""

from typing import Any

from gt.backends import cuda, cudnn, mps
from gt.backends.listing import show
from gt.backends.registry import Registry
from gt.backends.registry import fallbacks as fallbacks
from gt.backends.rows import ROWS, BackendRow

__all__ = [
    "Registry",
    "BackendRow",
    "cuda",
    "cudnn",
    "mps",
    "get_available_backends",
    "get_backend_info",
    "get_default_backend",
    "is_backend_available",
    "list_backends",
    "register_backend",
    "set_default_backend",
]

_registry = Registry(ROWS)


def get_available_backends() -> list[str]:
    """Names of the backends that work here, in a fixed order of priority."""
    _registry.search()
    return [name for name in _registry.rows if _registry.reason(name) is None]


def is_backend_available(name: str) -> bool:
    """Whether the backend computed the right numbers here. Raises ValueError for a name GT does not know."""
    return _registry.reason(name) is None


def get_default_backend() -> str:
    """The backend set by set_default_backend, else GT_BACKEND, else `backend:` of GT_CONFIG, else pytorch, or numpy without
    torch."""
    return _registry.default()


def set_default_backend(name: str) -> None:
    """Set the backend of workers that GT starts by itself, and of `gt.tensor_ops` if it has it; call it before the first op.
    Raises ValueError if the backend is unknown or not available here, and RuntimeError if workers run on another."""
    _registry.set_default(name)


def session_began() -> None:
    """Workers were started on the requested backend, and run until `session_ended`. Nothing is probed here."""
    _registry.running = _registry.name(_registry.asked() or _registry.plain_default())


def session_ended() -> None:
    _registry.running = None


def get_backend_info(name: str) -> dict[str, Any]:
    """The results of the probe: library, device, sizes, dtypes, the self-test, and the reason if it failed."""
    return _registry.info(name)


def register_backend(name: str, cls: Any) -> None:
    """Add a backend of your own: a class with create_tensor, binary_op, unary_op and get_data (docs/worker-backends.md).

    It is known in this process and, if the class can be imported, to workers that this process starts. Others find it
    as an entry point of the group `gt.backends`, or by `--backend module:Class`.
    """
    _registry.register(name, cls)


def registry() -> Registry:
    """This process's registry, for engines, gt.tensor_ops and PersistentKernel."""
    return _registry


def reason_unavailable(name: str) -> str | None:
    """The reason why the backend cannot be used here, or None."""
    return _registry.reason(name)


def known_name(name: str) -> str:
    """The backend's one name. Raises ValueError for a name GT does not know."""
    return _registry.name(name)


def asked_for() -> str | None:
    """The backend for new workers, as an argument of `--backend`; None if none was set."""
    return _registry.asked()


def list_backends(verbose: bool = False) -> list[dict[str, Any]]:
    """Print a table of all backends, with `verbose` their devices too; returns get_backend_info of each."""
    rows = all_infos()
    show(rows, verbose)
    return rows


def all_infos() -> list[dict[str, Any]]:
    """get_backend_info of every known backend, including those of installed packages."""
    _registry.search()
    return [_registry.info(name) for name in _registry.rows]
