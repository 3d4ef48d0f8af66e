"""The C++ backend's own matters: building, threads, recycled memory, forks, and no slow path."""

import gc
import itertools
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensor_ops_oracle as oracle

from gt.tensor_ops import calls
from gt.tensor_ops.arrays import narrow, widen
from gt.tensor_ops.cpp import build


def test_without_a_compiler_everything_works_on_numpy(tmp_path):
    code = (
        "from gt import tensor_ops, tensor_ops_cpp; import numpy as np\n"
        "tensor_ops.silu(np.ones(3, 'f4')); print(tensor_ops.get_backend())\n"
        "try: tensor_ops_cpp.silu(np.ones(3, 'f4'))\n"
        "except RuntimeError as error: print(error)\n"
    )
    bare = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "GT_TENSOR_OPS_CONFIG": str(tmp_path / "c.json")}
    (tmp_path / "c.json").write_text('{"backend_priority": ["cpp", "python"]}')
    environment = os.environ | bare
    environment.pop("CXX", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["python", "no C++ compiler found: install g++ or clang++, or set CXX"]


def test_a_library_is_built_once_and_again_when_something_changed(cpp, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cxx = build.compiler()
    compiled = []
    monkeypatch.setattr(build, "compile_to", lambda cxx, made: compiled.append(made))
    first = build.build()
    assert build.build() == first and len(compiled) == 1
    monkeypatch.setattr(build, "cpu_identity", lambda: "another CPU")
    assert build.build() != first and len(compiled) == 2
    assert build.library_path(cxx).parent == tmp_path / "gt" / "tensor_ops"


def test_the_compiler_s_output_is_in_the_error(cpp, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "KERNELS", tmp_path / "broken.cpp")
    (tmp_path / "broken.cpp").write_text("nonsense")
    with pytest.raises(build.BuildError, match="nonsense"):
        build.build()
    assert not list((tmp_path / "gt" / "tensor_ops").glob("*.so"))


def test_optimization_info_names_the_features_of_this_cpu(cpp):
    info = cpp.get_optimization_info()
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else None
    assert info["machine"] == platform.machine() and info["threads"] >= 1
    if platform.machine() == "aarch64":
        assert info["neon"] and not info["avx"] and not info["avx2"] and not info["avx512"]
    if flags is not None and platform.machine() == "x86_64":
        assert not info["neon"]
        assert info["avx2"] == ({"avx2", "fma", "bmi2"} <= flags)
        assert info["avx512"] == ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags)


def test_optimization_info_names_the_set_that_runs(cpp):
    lib = cpp.library()
    best = lib.gt_set()
    try:
        named = [(lib.gt_use_set(number), cpp.get_optimization_info()["instruction_set"])[1] for number in range(best + 1)]
        assert named == ["sse2", "avx2", "avx512"][: best + 1] or len(named) == 1
        lib.gt_use_set(0)
        assert not cpp.get_optimization_info()["avx512"]
    finally:
        lib.gt_use_set(best)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_instruction_set_gives_right_numbers(cpp, dtype):
    """Arrays that begin at every place of a cache line, of lengths that no register divides."""
    lib = cpp.library()
    wide = np.linspace(-20 if dtype == "float64" else -100, 30, 5003)  # the oracle of gelu's tail is float64 itself
    x = narrow(wide.astype(np.float32), dtype) if dtype == "bfloat16" else wide.astype(dtype)
    values = widen(x, dtype).astype(np.float64)
    right = {"silu": oracle.silu, "gelu_erf": oracle.gelu_erf, "relu": lambda v: np.maximum(v, 0)}
    best = lib.gt_set()
    try:
        for number in range(best + 1):
            assert lib.gt_use_set(number) == number
            for op, of in right.items():
                for begin in range(0, 64 // x.itemsize, 3):
                    out = np.zeros(x.size + 64, x.dtype)
                    cpp.elementwise(op, x[begin:], out[begin : x.size], dtype)
                    limit = 1500 if dtype == "float64" else 16
                    assert oracle.ulps(widen(out[begin : x.size], dtype), of(values[begin:]), dtype) <= limit, (number, op)
                    assert not out[:begin].any() and not out[x.size :].any()
        assert lib.gt_use_set(best + 1) == -1
    finally:
        lib.gt_use_set(best)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have one way to write results")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_large_results_are_the_same_through_the_caches_and_past_them(cpp, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9 << 20) // np.dtype(dtype).itemsize + 17).astype(dtype)[3:]
    rows = x[: x.size // 1009 * 1009].reshape(-1, 1009)
    weight = rng.standard_normal(1009).astype("float64" if dtype == "float64" else "float32")
    silu, norm, out = np.empty_like(x), np.empty_like(rows), np.empty_like(x)
    for begin in range(0, x.size, 100_003):
        cpp.elementwise("silu", x[begin : begin + 100_003], silu[begin : begin + 100_003], dtype)
    for begin in range(0, len(rows), 100):
        cpp.rms_norm(rows[begin : begin + 100], weight, norm[begin : begin + 100], 1e-6, dtype)
    before = cpp.get_optimization_info()["large_results"]
    for _ in range(33):  # both ways are measured again in this many calls
        cpp.elementwise("silu", x, out, dtype)
        assert np.array_equal(out, silu)
        made = np.empty_like(rows)
        cpp.rms_norm(rows, weight, made, 1e-6, dtype)
        assert np.array_equal(made, norm)
    after = cpp.get_optimization_info()["large_results"]
    assert sum(after.values()) - sum(before.values()) == 66
    assert all(after[way] - before[way] >= 2 for way in after), (before, after)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rms_norm_is_right_on_every_instruction_set(cpp, dtype):
    lib, rng = cpp.library(), np.random.default_rng(0)
    best = lib.gt_set()
    try:
        for number, columns in itertools.product(range(best + 1), (1, 33, 129, 1009)):
            lib.gt_use_set(number)
            wide = rng.standard_normal((7, columns)) * 10
            x = narrow(wide.astype(np.float32), dtype) if dtype == "bfloat16" else wide.astype(dtype)
            weight = rng.standard_normal(columns).astype("float64" if dtype == "float64" else "float32")
            out = np.zeros_like(x)
            cpp.rms_norm(x, weight, out, 1e-6, dtype)
            want = oracle.rms_norm(widen(x, dtype), weight, 1e-6)
            assert oracle.ulps(widen(out, dtype), want, dtype) <= 8, (number, columns)
    finally:
        lib.gt_use_set(best)


@pytest.mark.parametrize("bits", [np.uint16, np.float16])
def test_every_16_bit_number_is_right_on_every_instruction_set(cpp, bits):
    dtype = "bfloat16" if bits is np.uint16 else "float16"
    x = np.arange(1 << 16, dtype=np.uint16).view(bits)
    values = widen(x, dtype)
    lib = cpp.library()
    best = lib.gt_set()
    try:
        for number in range(best + 1):
            lib.gt_use_set(number)
            out = np.empty_like(x)
            cpp.elementwise("relu", x, out, dtype)
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(widen(out, dtype), np.where(values < 0, 0, values))
            for op, right in (("silu", oracle.silu), ("gelu_tanh", oracle.gelu_tanh), ("gelu_erf", oracle.gelu_erf)):
                cpp.elementwise(op, x, out, dtype)
                with np.errstate(invalid="ignore"):
                    assert oracle.ulps(widen(out, dtype), right(values), dtype) <= 1, (number, op)
    finally:
        lib.gt_use_set(best)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_that_go_past_the_cache_are_the_same(cpp, dtype):
    """Those of 8 MiB and more do. In place they do not."""
    x = np.tile(np.linspace(-20, 20, 4099, dtype=np.float32), 1100)
    x = narrow(x, dtype)
    small, large, same = np.empty(4099, x.dtype), np.empty_like(x), x.copy()
    cpp.elementwise("silu", x[:4099], small, dtype)
    cpp.elementwise("silu", x, large, dtype)
    cpp.elementwise("silu", same, same, dtype)
    assert np.array_equal(large.reshape(1100, 4099), np.broadcast_to(small, (1100, 4099))) and np.array_equal(large, same)


def test_any_number_of_threads_gives_the_same_bits(cpp):
    x = np.random.default_rng(0).standard_normal((301, 1111)).astype(np.float32)
    weight = np.ones(1111, np.float32)
    try:
        results = []
        for threads in (1, 2, 3, 8, 300):  # more than there are grains, and than a loop has parts
            cpp.set_threads(threads)
            results.append((calls.silu(cpp, x), calls.rms_norm(cpp, x, weight)))
    finally:
        cpp.set_threads(cpp._cpus())
    for other in results[1:]:
        assert np.array_equal(results[0][0], other[0]) and np.array_equal(results[0][1], other[1])
    with pytest.raises(ValueError, match="at least 1"):
        cpp.set_threads(0)


def test_many_callers_at_once_all_get_right_answers(cpp):
    inputs = [np.full(200_000, i / 4, np.float32) for i in range(8)]
    wrong = []

    def call(x):
        for _ in range(30):
            y = calls.silu(cpp, x)
            if not np.all(y == y[0]) or abs(y[0] - oracle.silu(x[0])) > 1e-5:
                wrong.append(float(x[0]))

    threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes(cpp):
    x = np.ones(500_000, np.float32)
    calls.silu(cpp, x)
    code = (
        "import os, sys, numpy as np; from gt import tensor_ops_cpp as t; x = np.ones(500_000, 'f4'); t.silu(x)\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if abs(t.silu(x)[-1] - 0.7310586) < 1e-5 else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_output_memory_is_recycled_and_never_while_in_use(cpp):
    x = np.ones(1_000_000, np.float32)
    first = calls.silu(cpp, x)
    place = first.ctypes.data
    part = first[10:20]
    del first
    gc.collect()
    second = calls.silu(cpp, x * 2)
    assert second.ctypes.data != place and np.allclose(part, 0.7310586)
    del part
    gc.collect()
    assert calls.silu(cpp, x).ctypes.data == place
    assert second.flags.writeable and second.ctypes.data % 64 == 0


def test_kept_memory_has_a_limit(cpp):
    try:
        cpp.keep_memory(8 << 20)
        outputs = [calls.silu(cpp, np.ones(1 << 20, np.float32)) for _ in range(5)]
        del outputs
        gc.collect()
        assert 0 < cpp.keep_memory(8 << 20) <= 8 << 20
        assert cpp.keep_memory(0) == 0
    finally:
        cpp.keep_memory(256 << 20)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
def test_idle_threads_go_to_sleep():
    """A thread that spins for work is running (R); one that waits for it sleeps (S)."""
    code = (
        "import os, time, threading, numpy as np; from gt import tensor_ops_cpp as t; from gt.tensor_ops.cpp import backend\n"
        "backend.set_threads(4); t.silu(np.ones(1_000_000, 'f4')); me = str(threading.get_native_id())\n"
        "others = [task for task in os.listdir('/proc/self/task') if task != me]; assert len(others) >= 3\n"
        "state = lambda task: open(f'/proc/self/task/{task}/stat').read().rpartition(')')[2].split()[0]\n"
        "end = time.monotonic() + 60\n"
        "while any(state(task) != 'S' for task in others): assert time.monotonic() < end; time.sleep(0.01)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=90, check=True)
