"""backend.json: the backend that users request. Found through GT_TENSOR_OPS_CONFIG, then the user's config folder, then
the packaged default. `choice.py` decides which backend is used.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gt import environment
from gt.backends.rows import ARRAYS

NAMES = tuple(ARRAYS)
AUTO = "auto"  # no backend by name: the rest of the configuration decides
PACKAGED = Path(__file__).parent / "backend.json"


@dataclass(frozen=True)
class TensorOpsConfig:
    """`force_backend` or nothing; else `preferred_backend` if it is available; else the first available of the priority.

    No priority: the backend that is fastest on this machine. A given order is always obeyed.
    """

    preferred_backend: str | None = None
    backend_priority: tuple[str, ...] | None = None
    force_backend: str | None = None


def known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"no backend {name!r}: known are {', '.join(NAMES)}")
    return name


def asked(name: str | None) -> str | None:
    """The backend that a user names, or None if the rest of the configuration decides."""
    if name is None or name == AUTO:
        return None
    if name not in NAMES:
        raise ValueError(f"no backend {name!r}: known are {', '.join(NAMES)}, and {AUTO!r} for the configured one")
    return name


def user_path() -> Path:
    """The file that `gt backends configure` writes."""
    if named := environment.TENSOR_OPS_CONFIG.value():
        return Path(named)
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "gt" / "backend.json"


def find() -> Path:
    """The file in force. One that GT_TENSOR_OPS_CONFIG names must exist."""
    path = user_path()
    if path.exists() or environment.TENSOR_OPS_CONFIG.value():
        return path
    return PACKAGED


def load(path: Path | None = None) -> TensorOpsConfig:
    path = find() if path is None else path
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}, which GT_TENSOR_OPS_CONFIG names, does not exist") from error
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    try:
        return checked(read)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def checked(read: Any) -> TensorOpsConfig:
    keys = [field.name for field in fields(TensorOpsConfig)]
    if not isinstance(read, dict):
        raise ValueError(f"expected an object with the keys {', '.join(keys)}")
    for key in read:
        if key not in keys:
            raise ValueError(f"no key {key!r}: known are {', '.join(keys)}")
    for key in ("preferred_backend", "force_backend"):
        if read.get(key) is not None:
            known_text(key, read[key])
    priority = read.get("backend_priority")
    if priority is None:
        return TensorOpsConfig(read.get("preferred_backend"), None, read.get("force_backend"))
    if not isinstance(priority, list | tuple) or not priority or len(set(map(str, priority))) < len(priority):
        raise ValueError(f"backend_priority must be a list of different backends, got {priority!r}")
    for name in priority:
        known_text("backend_priority", name)
    return TensorOpsConfig(read.get("preferred_backend"), tuple(priority), read.get("force_backend"))


def known_text(key: str, name: Any) -> None:
    if not isinstance(name, str) or name not in NAMES:
        raise ValueError(f"{key}: no backend {name!r}: known are {', '.join(NAMES)}")


def save(config: TensorOpsConfig, path: Path | None = None) -> Path:
    """Write the whole file or nothing, so that a reader never sees half of one."""
    path = user_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(config), file, indent=2)
            file.write("\n")
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)
    return path


def changed(config: TensorOpsConfig, **values: Any) -> TensorOpsConfig:
    """The config with some values replaced, checked as a file's would be."""
    return checked(asdict(replace(config, **values)))
