"""The kernels for the other architecture: cross-compiled and run by qemu. x86-64 runs aarch64's, others x86-64's.

Debian's g++-aarch64-linux-gnu (or g++-x86-64-linux-gnu) and qemu-user are needed; qemu has AVX2 but not AVX-512.
On its own machine test_tensor_ops_cpp.py goes through the instruction sets of the CPU.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensor_ops_oracle as oracle
from test_tensor_ops_numbers import OPS, grid, stated

from gt.tensor_ops.arrays import widen
from gt.tensor_ops.cpp import backend, build

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
CROSS = shutil.which(f"{OTHER}-linux-gnu-g++")
QEMU = shutil.which(f"qemu-{OTHER}") or shutil.which(f"qemu-{OTHER}-static")
SETS = {"aarch64": {"neon": 0}, "x86_64": {"sse2": 0, "avx2": 1}}[OTHER]
TABLES = {"aarch64": {"gt_native": build.NATIVE[1:]}, "x86_64": build.X86_SETS}[OTHER]
CPP = SimpleNamespace(name="cpp")
KERNELS = {"silu": "silu", "gelu": "gelu_tanh", "gelu from -1": "gelu_tanh", "gelu none": "gelu_erf"}

pytestmark = pytest.mark.skipif(not (CROSS and QEMU), reason=f"needs {OTHER}-linux-gnu-g++ and qemu-{OTHER} (or -static)")


@pytest.fixture(scope="module")
def program():
    """Compiled once for each source."""
    source = Path(__file__).parent / "one_call.cpp"
    files = [source, *sorted([*build.FOLDER.glob("*.h"), *build.FOLDER.glob("*.cpp")])]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files) + " ".join(build.FLAGS).encode()).hexdigest()
    made = build.cache_folder() / f"one-call-{OTHER}-{digest[:20]}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        half = made.with_suffix(f".{os.getpid()}")
        with tempfile.TemporaryDirectory() as folder:
            objects = build.compile_objects(CROSS, TABLES, Path(folder), interface=source)
            subprocess.run([CROSS, "-static-libstdc++", "-static-libgcc", "-pthread", *objects, "-o", half], check=True)
        os.replace(half, made)
    return made


def call(program, number, op, x, dtype, weight=None):
    rows, columns = x.shape if weight is not None else (1, x.size)
    numbers = number, -1 if op == "rms_norm" else backend._OPS[op], backend._DTYPES[dtype], x.itemsize, rows, columns
    command = [QEMU, "-L", f"/usr/{OTHER}-linux-gnu", "-cpu", "max", program, *map(str, numbers)]
    given = x.tobytes() + (b"" if weight is None else weight.tobytes())
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout


def computed(program, number, op, x, dtype, weight=None):
    code, result = call(program, number, op, x, dtype, weight)
    assert code == 0, result
    return np.frombuffer(result, x.dtype).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", SETS)
def test_errors_under_emulation_stay_within_the_documented_bounds(program, name, dtype):
    x = np.concatenate([grid(dtype), grid(dtype)[:13]])  # a length that no register divides
    values = widen(x, dtype).astype(np.float64)
    for op, (_, right, lowest) in OPS.items():
        inside = values >= lowest
        got = widen(computed(program, SETS[name], KERNELS[op], np.ascontiguousarray(x[inside]), dtype), dtype)
        assert oracle.ulps(got, right(values[inside]), dtype) <= stated(op, dtype, CPP), op


@pytest.mark.parametrize("name", SETS)
def test_float64_under_emulation_is_right(program, name):
    x = np.concatenate([np.linspace(-20, 30, 3001), np.exp2(np.arange(-1000.0, 1000, 40)), [np.inf, -np.inf]])
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        cubic = wide * (np.longdouble(8) / np.longdouble(np.pi)) ** 0.5 * (1 + np.longdouble("0.044715") * wide * wide)
        wanted = {"silu": wide / (1 + np.exp(-wide)), "gelu_tanh": wide / (1 + np.exp(-cubic)), "gelu_erf": oracle.gelu_erf(x)}
    for op, want in wanted.items():
        want[-1] = 0.0
        np.testing.assert_allclose(computed(program, SETS[name], op, x, "float64"), want, rtol=4e-13, atol=1e-300)


@pytest.mark.parametrize("columns", [1, 17, 1000, 4099])
@pytest.mark.parametrize("name", SETS)
def test_rms_norm_under_emulation_stays_within_the_documented_bounds(program, name, columns):
    rng = np.random.default_rng(columns)
    for dtype in ("float32", "float16", "float64"):
        x = (rng.standard_normal((5, columns)) * [[1e-3], [1], [30], [0.1], [5]]).astype(dtype)
        if dtype != "float16":
            x[3] *= 1e30  # its squares leave float32
        weight = rng.standard_normal(columns).astype("float64" if dtype == "float64" else "float32")
        got = computed(program, SETS[name], "rms_norm", x, dtype, weight)
        assert oracle.ulps(got, oracle.rms_norm(x, weight, 1e-6), dtype) <= stated("rms_norm", dtype, CPP), dtype
