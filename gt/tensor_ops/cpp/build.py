"""Compile the kernels into a shared library, once for each source, compiler and CPU.

On x86-64 one library holds the kernels of every instruction set.
The library has a C interface, so one build serves every Python version and needs no Python headers.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from gt.backends.machine import cache_folder, cpu_identity
from gt.ownership import why_not_own

FOLDER = Path(__file__).parent
INTERFACE, KERNELS = FOLDER / "kernels.cpp", FOLDER / "instruction_set.cpp"
FLAGS = ["-std=c++17", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-pthread"]
# The table of kernels compiled from instruction_set.cpp with each set of flags; kernels.cpp chooses among them at run time.
X86_SETS = {
    "gt_sse2": ["-march=x86-64"],
    "gt_avx2": ["-march=x86-64-v3"],
    "gt_avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
# Elsewhere one table for this CPU. GCC keeps the kernels' order of instructions, in which the registers of 64-bit ARM suffice:
# in its own order gelu (erf) spills a third of them and takes 1.12 times as long.
NATIVE = ["-mcpu=native", "-fno-schedule-insns"]
SECONDS = 120


class BuildError(RuntimeError):
    """The library could not be built; the message has the compiler's output."""


def compiler() -> str | None:
    """Path of the C++ compiler: $CXX, else the first of g++, clang++ and c++."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    return None


def library_path(cxx: str) -> Path:
    """The path of the library for this source, compiler and CPU."""
    digest = hashlib.sha256()
    for file in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    digest.update("\0".join([cpu_identity(), version, *FLAGS, repr(instruction_sets())]).encode())
    return cache_folder() / f"kernels-{digest.hexdigest()[:20]}.so"


def instruction_sets() -> dict[str, list[str]]:
    """The tables to compile for this machine, with their flags."""
    return X86_SETS if platform.machine() in ("x86_64", "AMD64") else {"gt_native": NATIVE}


def build(force: bool = False) -> Path:
    """Path of the compiled library, compiled if it is not in the cache. Raises BuildError."""
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")
    path = library_path(cxx)
    if path.exists() and not force:
        return checked_library(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    except OSError as error:
        raise BuildError(f"cannot write the compiled kernels to {path.parent}: {error}") from error
    os.close(handle)
    try:
        compile_to(cxx, made)
        # Renaming is atomic: a process that builds at the same time finds a whole library or none.
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)
    return checked_library(path)


def checked_library(path: Path) -> Path:
    """Check a library before it is loaded and executed: no other user may have written it."""
    if wrong := why_not_own(path.parent) or why_not_own(path):
        raise BuildError(f"{wrong}, so others could have written {path.name}: make it yours alone, or set XDG_CACHE_HOME")
    return path


def compile_to(cxx: str, made: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run_all([[cxx, "-shared", "-pthread", *compile_objects(cxx, instruction_sets(), Path(folder)), "-o", made]])


def compile_objects(cxx: str, sets: dict[str, list[str]], folder: Path, interface: Path = INTERFACE) -> list[str]:
    """Compile the interface and every table of kernels, all at the same time; returns the object files."""
    objects = [f"{folder}/interface.o", *(f"{folder}/{table}.o" for table in sets)]
    commands = [[cxx, *FLAGS, f"-I{FOLDER}", "-c", str(interface), "-o", objects[0]]]
    for (table, flags), target in zip(sets.items(), objects[1:]):
        commands.append([cxx, *FLAGS, *flags, f"-DGT_TABLE={table}", "-c", str(KERNELS), "-o", target])
    _run_all(commands)
    return objects


def _run_all(commands: list[list[str]]) -> None:
    running: list[tuple[list[str], subprocess.Popen]] = []
    try:
        for command in commands:
            running.append((command, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)))
        for command, process in running:
            said = process.communicate(timeout=SECONDS)[1]
            if process.returncode == 0:
                continue
            if "-mcpu=native" in command:  # not every compiler supports it for its CPU
                _run_all([[word for word in command if word != "-mcpu=native"]])
                continue
            raise BuildError(f"{' '.join(command)}:\n{said.strip()}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{' '.join(commands[len(running) - 1])}: {error}") from error
    finally:
        for _, process in running:
            process.kill()
            process.communicate()
