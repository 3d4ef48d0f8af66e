"""The C++ backend's own matters: building, threads, recycled memory, forks, and no slow path."""

import gc
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensor_ops_oracle as oracle

from gt.tensor_ops import calls
from gt.tensor_ops.cpp import build
from gt.tensor_ops.measure import alternately


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


def test_what_the_compiler_says_is_in_the_error(cpp, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "broken.cpp")
    (tmp_path / "broken.cpp").write_text("nonsense")
    with pytest.raises(build.BuildError, match="nonsense"):
        build.build()
    assert not list((tmp_path / "gt" / "tensor_ops").glob("*.so"))


def test_the_kernels_compile_without_warnings(cpp, tmp_path):
    command = [
        build.compiler(),
        *build.FLAGS,
        "-Wall",
        "-Wextra",
        "-Werror",
        str(build.SOURCE),
        "-o",
        tmp_path / "k.so",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_optimization_info_says_what_this_cpu_has(cpp):
    info = cpp.get_optimization_info()
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else None
    assert info["machine"] == platform.machine() and info["threads"] >= 1
    if platform.machine() == "aarch64":
        assert info["neon"] and not info["avx"] and not info["avx2"] and not info["avx512"]
    if flags is not None and platform.machine() == "x86_64":
        assert not info["neon"]
        assert info["avx2"] == ({"avx2", "fma", "bmi2"} <= flags)
        assert info["avx512"] <= ("avx512f" in flags)


def test_every_instruction_set_gives_right_numbers(cpp):
    lib = cpp.library()
    x = np.linspace(-100, 30, 100_003, dtype=np.float32)
    weight = np.linspace(1, 2, 1009, dtype=np.float32)
    rows = np.ascontiguousarray(x[: 99 * 1009].reshape(99, 1009))
    best = lib.gt_level()
    try:
        for level in range(best + 1):
            assert lib.gt_set_level(level) == level
            assert oracle.ulps(calls.silu(cpp, x), oracle.silu(x), "float32") <= 8
            assert oracle.ulps(calls.gelu(cpp, x, "none"), oracle.gelu_erf(x), "float32") <= 16
            assert oracle.ulps(calls.rms_norm(cpp, rows, weight), oracle.rms_norm(rows, weight, 1e-6), "float32") <= 8
        assert lib.gt_set_level(best + 1) == -1
    finally:
        lib.gt_set_level(best)


def test_any_number_of_threads_gives_the_same_bits(cpp):
    x = np.random.default_rng(0).standard_normal((301, 1111)).astype(np.float32)
    weight = np.ones(1111, np.float32)
    try:
        results = []
        for threads in (1, 2, 3, 8):
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


def test_idle_threads_do_not_burn_the_cpu(cpp):
    x = np.ones(1_000_000, np.float32)
    calls.silu(cpp, x)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_silu_costs_no_more_than_a_few_copies(cpp):
    """A slow path (scalar code, denormal stalls) is 3 to 10 times slower than this allows.

    Counted in the time of one thread, so that other processes do not count. On two 128-bit units the arithmetic alone
    takes 10.9 cycles for four floats (neon.h), where a copy takes 2.6: 4.3 copies were measured.
    """
    x = np.random.default_rng(0).standard_normal((1024, 4096)).astype(np.float32)
    masked = np.where(x > 0, x, np.float32(-1e4))
    out = np.empty_like(x)
    limit = 4 if cpp.get_optimization_info()["avx2"] else 6
    runs = {
        "copy": lambda: cpp.copy(x, out),
        "silu": lambda: calls.silu(cpp, x, out),
        "masked": lambda: calls.silu(cpp, masked, out),
    }
    cpp.set_threads(1)
    try:
        took = alternately(runs, 10, time.thread_time)
    finally:
        cpp.set_threads(cpp._cpus())
    assert max(took["silu"], took["masked"]) <= limit * took["copy"], took
