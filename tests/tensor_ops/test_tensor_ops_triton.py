"""The Triton kernels without a GPU: their maths through Triton's interpreter, and compiled for one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, warnings
warnings.simplefilter("ignore")  # NumPy under the interpreter remarks on infinities
import numpy as np, torch, tensor_ops_oracle as oracle
from gt.tensor_ops.cuda import kernels

def check(name, got, want, dtype, limit):
    error = oracle.ulps(got.double().numpy(), want, dtype)
    assert error <= limit, f"{name} {dtype}: {error} ulps"

special = torch.tensor([float("nan"), float("inf"), -float("inf"), -1e4, 0.0, -0.0, -88.5, 3e4])
lengths = [int(n) for n in os.environ["ROW_LENGTHS"].split()]
rights = {"silu": oracle.silu, "gelu_tanh": oracle.gelu_tanh, "gelu_erf": oracle.gelu_erf}
limits = {"silu": 8, "gelu_tanh": 300, "gelu_erf": 16}
for dtype in ("float32", "float64", "float16", "bfloat16"):
    x = torch.cat([torch.linspace(-9.9, 12, 4095), special]).to(getattr(torch, dtype))
    for op, right in rights.items():
        y = torch.empty_like(x)
        kernels.run_elementwise(op, x, y, dtype == "float64")
        if dtype == "float64":
            # float64 is held to its absolute error: the interpreter's erf and NumPy's exp bound the relative one
            near = np.allclose(y.numpy(), right(x.numpy()), rtol=1e-13, atol=1e-15, equal_nan=True)
            assert near, op
        else:
            check(op, y, right(x.double().numpy()), dtype, limits[op] if dtype == "float32" else 1)
    for columns in lengths:
        x = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns)).to(getattr(torch, dtype))
        w = torch.linspace(0.5, 1.5, columns).to(torch.float64 if dtype == "float64" else torch.float32)
        y = torch.empty_like(x)
        rstd = torch.empty(3, dtype=w.dtype)
        kernels.run_rms_norm(x, w, y, 1e-6, dtype == "float64", rstd)
        assert torch.allclose(rstd.double(), (x.double().square().mean(1) + 1e-6).rsqrt(), rtol=1e-5)
        limit = 8 if dtype in ("float32", "float64") else 1
        check("rms_norm", y, oracle.rms_norm(x.double().numpy(), w.numpy(), 1e-6), dtype, limit)
        w = w.to(x.dtype)
        kernels.run_rms_norm(x, w, y, 1e-6, dtype == "float64")
        check("rms_norm", y, oracle.rms_norm(x.double().numpy(), w.double().numpy(), 1e-6), dtype, limit)
for scale in (1e30, 1e-30):
    for columns in lengths[-1:]:
        x, w = torch.randn(3, columns) * scale, torch.ones(columns)
        x[1] /= scale
        y, rstd = torch.empty_like(x), torch.empty(3)
        kernels.run_rms_norm(x, w, y, 0.0, False, rstd)
        check("rms_norm", y, oracle.rms_norm(x.double().numpy(), w.numpy(), 0.0), "float32", 8)
        assert torch.allclose(rstd.double() * scale, x.double().square().mean(1).rsqrt() * scale, rtol=1e-5)
x = torch.ones(2, 20)
x[0, 3] = float("inf")
y = torch.empty_like(x)
kernels.run_rms_norm(x, torch.ones(20), y, 1e-6, False)
assert torch.isnan(y[0, 3]) and (y[0, :3] == 0).all() and (y[1] != 0).all()
print("right")
"""


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gt.tensor_ops.cuda import kernels

def compile(kernel, types, **constants):
    signature = types | dict.fromkeys(constants, "constexpr")
    options = {"num_warps": 8} | kernels.OPTIONS
    made = triton.compile(ASTSource(kernel, signature, constexprs=constants), GPUTarget("cuda", 90, 32), options)
    assert "cubin" in made.asm

for dtype, wide in (("fp32", False), ("fp64", True), ("bf16", False)):
    pointers = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}"}
    for of in kernels.OPS.values():
        compile(kernels.elementwise, pointers | {"count": "i64"}, of=of, wide=wide, block=kernels.BLOCK, on_cpu=False)
    weight = {"w_ptr": f"*{dtype}", "columns": "i32"}
    scale = {"r_ptr": "*fp64" if wide else "*fp32"}
    for kernel in (kernels.rms_row, kernels.rms_long_row):
        compile(kernel, pointers | weight, r_ptr=None, root=1e-3, wide=wide, block=4096)
        compile(kernel, pointers | weight | scale, root=1e-3, wide=wide, block=4096)
print("compiled")
"""


def run(code, **environment):
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(autouse=True)
def has_triton():
    for name in ("triton", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def test_the_kernels_are_right_under_the_interpreter():
    done = run(CODE, TRITON_INTERPRET="1", ROW_LENGTHS="1 17 1000 300")
    assert done.stdout.strip() == "right", done.stderr


@pytest.mark.usefixtures("triton_loops")
def test_rows_in_pieces_are_right_under_the_interpreter():
    done = run(CODE, TRITON_INTERPRET="1", ROW_LENGTHS="20000 17000")
    assert done.stdout.strip() == "right", done.stderr


def test_the_kernels_compile_for_a_gpu_that_is_not_here():
    done = run(COMPILE)
    assert done.stdout.strip() == "compiled", done.stderr
    assert "Warning" not in done.stderr
