"""Compile the decode loop into a shared library, once for each source, compiler and CPU."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from gt.backends.machine import cache_folder, cpu_identity
from gt.tensor_ops.cpp.build import SECONDS, BuildError, checked_library, compiler

SOURCES = Path(__file__).parent
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-fopenmp", "-Wno-psabi"]
NATIVE = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def build(sources: Path = SOURCES) -> Path:
    """Path of the compiled library, compiled if it is not in the cache. Raises BuildError."""
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")
    digest = hashlib.sha256()
    for file in sorted([*sources.glob("*.h"), *sources.glob("*.cpp")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    digest.update("\0".join([cpu_identity(), version, *FLAGS, NATIVE]).encode())
    path = cache_folder() / f"decode-{digest.hexdigest()[:20]}.so"
    if not path.exists():
        _compile(cxx, sources / "decode.cpp", path)
    return checked_library(path)


def _compile(cxx: str, source: Path, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    except OSError as error:
        raise BuildError(f"cannot write the compiled decode loop to {path.parent}: {error}") from error
    os.close(handle)
    try:
        for flags in ([*FLAGS, NATIVE], FLAGS):  # not every compiler knows `native` for its CPU
            command = [cxx, *flags, str(source), "-o", made]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode == 0:
                break
        else:
            raise BuildError(f"{' '.join(command)}:\n{done.stderr.strip()}")
        # Renaming is atomic: a process that builds at the same moment finds a whole library or none.
        os.replace(made, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{cxx} {source.name}: {error}") from error
    finally:
        Path(made).unlink(missing_ok=True)
