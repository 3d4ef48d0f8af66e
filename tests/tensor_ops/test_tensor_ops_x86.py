"""The kernels for x86-64 on a machine that is not one: cross-compiled and run by qemu, which has AVX2 but not AVX-512.

Debian's g++-x86-64-linux-gnu and qemu-user are what it takes. On x86-64 itself test_tensor_ops_cpp.py goes through the
instruction sets of the CPU.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensor_ops_oracle as oracle
from test_tensor_ops_numbers import OPS, grid, stated

from gt.tensor_ops.arrays import widen
from gt.tensor_ops.cpp import backend, build

CROSS, QEMU = shutil.which("x86_64-linux-gnu-g++"), shutil.which("qemu-x86_64")
LEVELS = {"x86-64": 0, "x86-64-v3": 1}
CPP = SimpleNamespace(name="cpp")
KERNELS = {"silu": "silu", "gelu": "gelu_tanh", "gelu from -1": "gelu_tanh", "gelu none": "gelu_erf"}

pytestmark = [
    pytest.mark.skipif(platform.machine() == "x86_64", reason="this CPU runs the kernels itself"),
    pytest.mark.skipif(not (CROSS and QEMU), reason="needs x86_64-linux-gnu-g++ and qemu-x86_64"),
]


@pytest.fixture(scope="module")
def program():
    """Compiled once for each source: three instruction sets take half a minute."""
    source = Path(__file__).parent / "one_call.cpp"
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
    flags += ["-static-libstdc++", "-static-libgcc", f"-I{build.SOURCE.parent}"]
    files = [source, *sorted(build.SOURCE.parent.glob("*.h")), build.SOURCE]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files) + " ".join(flags).encode()).hexdigest()
    made = build.cache_folder() / f"one-call-x86-{digest[:20]}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        half = made.with_suffix(f".{os.getpid()}")
        subprocess.run([CROSS, *flags, str(source), "-o", half], check=True, timeout=200)
        os.replace(half, made)
    return made


def call(program, level, op, x, dtype, weight=None):
    rows, columns = x.shape if weight is not None else (1, x.size)
    numbers = level, -1 if op == "rms_norm" else backend._OPS[op], backend._DTYPES[dtype], x.itemsize, rows, columns
    command = [QEMU, "-L", "/usr/x86_64-linux-gnu", "-cpu", "max", program, *map(str, numbers)]
    given = x.tobytes() + (b"" if weight is None else weight.tobytes())
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout


def computed(program, level, op, x, dtype, weight=None):
    code, result = call(program, level, op, x, dtype, weight)
    assert code == 0, result
    return np.frombuffer(result, x.dtype).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("level", LEVELS)
def test_errors_on_x86_stay_within_what_the_docs_state(program, level, dtype):
    x = np.concatenate([grid(dtype), grid(dtype)[:13]])  # a length that no register divides
    values = widen(x, dtype).astype(np.float64)
    for op, (_, right, lowest) in OPS.items():
        inside = values >= lowest
        got = widen(computed(program, LEVELS[level], KERNELS[op], np.ascontiguousarray(x[inside]), dtype), dtype)
        assert oracle.ulps(got, right(values[inside]), dtype) <= stated(op, dtype, CPP), op


@pytest.mark.parametrize("level", LEVELS)
def test_float64_on_x86_is_right(program, level):
    x = np.concatenate([np.linspace(-20, 30, 3001), np.exp2(np.arange(-1000.0, 1000, 40)), [np.inf, -np.inf]])
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        cubic = wide * (np.longdouble(8) / np.longdouble(np.pi)) ** 0.5 * (1 + np.longdouble("0.044715") * wide * wide)
        wanted = {"silu": wide / (1 + np.exp(-wide)), "gelu_tanh": wide / (1 + np.exp(-cubic)), "gelu_erf": oracle.gelu_erf(x)}
    for op, want in wanted.items():
        want[-1] = 0.0
        np.testing.assert_allclose(computed(program, LEVELS[level], op, x, "float64"), want, rtol=4e-13, atol=1e-300)


@pytest.mark.parametrize("columns", [1, 17, 1000, 4099])
@pytest.mark.parametrize("level", LEVELS)
def test_rms_norm_on_x86_stays_within_what_the_docs_state(program, level, columns):
    rng = np.random.default_rng(columns)
    for dtype in ("float32", "float16", "float64"):
        x = (rng.standard_normal((5, columns)) * [[1e-3], [1], [30], [0.1], [5]]).astype(dtype)
        if dtype != "float16":
            x[3] *= 1e30  # its squares leave float32
        weight = rng.standard_normal(columns).astype("float64" if dtype == "float64" else "float32")
        got = computed(program, LEVELS[level], "rms_norm", x, dtype, weight)
        assert oracle.ulps(got, oracle.rms_norm(x, weight, 1e-6), dtype) <= stated("rms_norm", dtype, CPP), dtype
