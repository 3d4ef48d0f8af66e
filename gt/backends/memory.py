"""Results of slow probes, stored between processes while the library, the CPU and the probe stay the same."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gt.backends import probes
from gt.backends.facts import Found, Missing, Outcome
from gt.backends.machine import cache_folder, cpu_identity
from gt.lazy_import import LazyImport

metadata = LazyImport("importlib.metadata")  # slow to import


def remembered(name: str, package: str, probe: Callable[[], Outcome]) -> Outcome:
    """The stored result, or the probe's, which is then stored. A cache that cannot be read or written is no error."""
    path = _path(name, package)
    try:
        kept = json.loads(path.read_text())
        return Missing(**kept) if "reason" in kept else Found(**(kept | {"dtypes": tuple(kept["dtypes"])}))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    outcome = probe()
    with contextlib.suppress(OSError):
        _write(path, json.dumps(asdict(outcome)))
    return outcome


def _path(name: str, package: str) -> Path:
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = "none"
    facts = "\0".join([name, found, cpu_identity(), Path(probes.__file__).read_text()])
    return cache_folder().parent / "probes" / f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:20]}.json"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)
