"""Compile the kernels into a shared library, once for each source, compiler and CPU.

The library has a C interface, so one build serves every Python version and needs no Python headers.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "kernels.cpp"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-shared", "-fPIC", "-pthread"]
SECONDS = 120


class BuildError(RuntimeError):
    """The library could not be built; the message holds what the compiler said."""


def compiler() -> str | None:
    """Path of the C++ compiler: $CXX, else the first of g++, clang++ and c++."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    return None


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gt" / "tensor_ops"


def cpu_identity() -> str:
    """What the compiler's `native` depends on. A cache may lie on a file system that different CPUs share."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})])


def library_path(cxx: str) -> Path:
    """Where the library for this source, compiler and CPU lies or will lie."""
    digest = hashlib.sha256()
    for file in sorted(SOURCE.parent.glob("*.h")) + [SOURCE]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    digest.update("\0".join([cpu_identity(), version, *FLAGS, *native_flags(cxx)]).encode())
    return cache_folder() / f"kernels-{digest.hexdigest()[:20]}.so"


def native_flags(cxx: str) -> list[str]:
    """GCC on x86-64 compiles every instruction set into one library and chooses at run time; others use `native`."""
    if platform.machine() in ("x86_64", "AMD64"):
        return ["-march=native"] if "clang" in Path(cxx).resolve().name or sys.platform == "darwin" else []
    return ["-mcpu=native"]


def build(force: bool = False) -> Path:
    """Path of the compiled library, compiled if it is not in the cache. Raises BuildError."""
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")
    path = library_path(cxx)
    if path.exists() and not force:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    except OSError as error:
        raise BuildError(f"cannot write the compiled kernels to {path.parent}: {error}") from error
    os.close(handle)
    try:
        compile_to(cxx, made)
        # Renaming is atomic: a process that builds at the same moment finds a whole library or none.
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)
    return path


def compile_to(cxx: str, made: str) -> None:
    said = ""
    for native in (native_flags(cxx), []):  # not every compiler knows `native` for its CPU
        command = [cxx, *FLAGS, *native, str(SOURCE), "-o", made]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{' '.join(command)}: {error}") from error
        if done.returncode == 0:
            return
        said = f"{' '.join(command)}:\n{done.stderr.strip()}"
    raise BuildError(said)
