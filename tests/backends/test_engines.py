"""Workers on any backend: every engine is right for every row, counts the path of each op, and refuses a missing backend."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gt
from gt import backends
from gt.ops import TABLE, infer
from gt.ops.lower import lowered
from gt.spec import Spec, bfloat16, float16, float32, float64, int64
from gt.testing import check_backend, samples
from gt.worker.engine.choose import make
from gt.worker.engine.numpy import NumPyEngine, numpy_dtype, round_bfloat16
from gt.worker.engine.torch import ctc

ROOT = Path(__file__).parents[2]
X = Spec((2, 3), float32)
# The kernels that each engine has of its own, and the least number of samples that run on them.
OWN = {"cpp": 100, "opencl": 30, "mkldnn": 8}
FEW = ("add", "exp", "matmul", "linear", "conv", "softmax", "rms_norm")


def available(name):
    if reason := backends.reason_unavailable(name):
        pytest.skip(f"{name}: {reason}")
    return name


def run_python(code, **environment):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=80, check=False
    )


@pytest.mark.parametrize("name", list(OWN))
def test_the_engine_is_right_for_every_row(name):
    report = check_backend(available(name))
    assert report.ways["own"] >= OWN[name] and set(report.ways) <= {"own", "decomposed", "bridged"}


@pytest.mark.parametrize("name", ["cpu", "openmp", "mkl", "cuda", "cudnn", "triton"])
def test_an_engine_that_is_pytorch_throughout_is_right(name):
    assert check_backend(available(name), rows=FEW).rows == len(FEW)


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=lambda d: d.name)
def test_the_c_kernels_agree_with_numpy_beyond_one_vector_and_one_thread(dtype):
    engine, numpy = make(available("cpp")), NumPyEngine()
    rng = np.random.default_rng(0)

    def draw(*shape):
        a = rng.standard_normal(shape).astype(numpy_dtype(dtype)) * 3
        return round_bfloat16(a) if dtype is bfloat16 else a

    a, b, row = draw(401, 173), draw(401, 173), draw(173)
    tried = 0
    for name in sorted(engine.own.unary | engine.own.pairs):
        statics = {"gelu_tanh": (True,), "gelu_erf": (False,)}.get(name, ())
        op = TABLE["gelu" if statics else name]
        pairs = [(a, b)] + [(a, o) for o in (row, row[:1], 1.5) if not name.endswith("_grad")]
        for operands in [(a,)] if name in engine.own.unary else pairs:
            ins = tuple(Spec(o.shape, dtype) if isinstance(o, np.ndarray) else float for o in operands)
            kind = infer(op, ins, statics)
            if engine.way(kind) == "own":
                tried += 1
                close = samples.coarsest(kind)
                samples.assert_close(engine.kernel(kind)(*operands), numpy.kernel(kind)(*operands), kind.outs[0], name, close)
    assert tried >= 20


def test_pytorchs_ctc_is_right_in_the_form_for_gpus(monkeypatch):
    """Step by step, as a CUDA graph cannot contain PyTorch's kernel."""
    monkeypatch.setattr(ctc, "_by_steps", lambda p: True)
    assert check_backend("pytorch", ("ctc", "ctc_grad")).samples > 8


def test_a_decomposition_gives_the_results_of_the_kernel():
    engine = NumPyEngine()
    done = set()
    for row in (r for r in TABLE.values() if r.lower):
        for sample in (*samples.plain(row), *samples.varied(row)):
            if steps := lowered(sample.kind):
                run = steps.bind([engine.kernel(s.kind) for s in steps.body])
                given = samples.for_numpy(sample)
                found, want = samples.several(run(*given)), samples.several(engine.kernel(sample.kind)(*given))
                for f, w, spec in zip(found, want, sample.kind.outs):
                    samples.assert_close(f, w, spec, sample.id, samples.coarsest(sample.kind))
                done.add(row.name)
    assert done >= {"softmax", "log_softmax", "linear", "mean", "silu_grad", "gelu_grad", "rms_norm_grad", "elu_grad"}
    assert "layer_norm_grad" not in done  # it makes the mean anew, which the row's operands need not agree with


def test_an_own_kernel_is_chosen_by_dtype_and_shape():
    engine = make(available("cpp"))
    add = TABLE["add"]
    assert engine.way(infer(add, (X, X), ())) == "own"
    assert engine.way(infer(add, (X, Spec((3,), float32)), ())) == "own"
    assert engine.way(infer(add, (X, float), ())) == "own"
    assert engine.way(infer(add, (X, Spec((2, 1), float32)), ())) == "bridged"
    assert engine.way(infer(add, (X, Spec((2, 3), int64)), ())) == "bridged"
    assert engine.way(infer(add, (Spec((2, 3), int64), int), ())) == "bridged"
    assert engine.way(infer(TABLE["matmul"], (X, Spec((3, 2), float32)), ())) == "bridged"


def test_stats_show_the_engine_of_each_op():
    with gt.testing.cluster(1, available("cpp")):
        x = gt.ones(4, 4)
        y = gt.silu(x) + x
        (y @ y).numpy()
        (stats,) = gt.debug.get_worker_stats().values()
    assert stats["engine"] == "cpp" and stats["base"] == "numpy" and not stats["fell_back"]
    assert stats["kernels"]["own"] == 2 and stats["kernels"]["bridged"] == 2, stats["ops"]
    assert sum(stats["kernels"].values()) == stats["instructions"]
    with gt.testing.cluster(1, "numpy"):
        (gt.ones(2) + 1.0).numpy()
        (stats,) = gt.debug.get_worker_stats().values()
    assert stats["kernels"] == {"own": 2} and stats["base"] == ""


def test_shares_are_counted_inside_traces_and_for_clients_that_left():
    with gt.testing.cluster(1, available("cpp")) as made:
        x = gt.ones(4, 4)
        for _ in range(30):
            x = gt.silu(x) + 1.0
        x.numpy()
        worker = made.workers[0]
        before = worker.stats()["kernels"]
        for client in list(worker.spaces):
            space = worker.spaces[client]
            worker.counts.retire_all(space)
            space.kinds.clear()
        assert worker.stats()["kernels"] == before and before["own"] == 60


def test_an_unavailable_backend_is_refused_with_its_reason():
    with pytest.raises(ValueError, match="backend 'nki' is not available: the AWS Neuron SDK"):
        make("nki")
    with pytest.raises(ValueError, match="no backend 'torhc': known are cuda"):
        make("torhc")


def test_a_fallback_is_recorded_and_warned_of_once():
    with pytest.warns(RuntimeWarning, match="falling back to backend 'numpy': nki: .*Neuron") as seen:
        engine = make("nki", ("numpy", "pytorch"))
    assert len(seen) == 1 and engine.name == "numpy"
    assert list(engine.fell_back) == ["nki"] and "Neuron" in engine.fell_back["nki"]
    assert not make("numpy", ("nki",)).fell_back
    with pytest.raises(ValueError, match="no backend is available: nki: .*; "):
        make("nki", ("nki", "nki:nki"))
    with pytest.raises(ValueError, match="no backend 'torhc'"):
        make("numpy", ("torhc",))


def test_a_worker_process_falls_back_with_a_warning():
    code = """
import gt
print(gt.ones(2).numpy().sum())
(stats,) = gt.debug.get_worker_stats().values()
print(stats["engine"], list(stats["fell_back"]))
"""
    done = run_python(code, GT_BACKEND="nki", GT_FALLBACK_BACKENDS="numpy")
    assert done.stdout.split("\n")[:2] == ["2.0", "numpy ['nki']"], done.stderr
    assert done.stderr.count("gt-worker: backend 'nki' is not available") == 1


def test_a_configuration_names_the_backend_and_its_fallbacks(tmp_path):
    path = tmp_path / "gt.yaml"
    path.write_text("backend: nki\nfallback_backends: [numpy]\n")
    code = "import gt; gt.ones(2).numpy(); (s,) = gt.debug.get_worker_stats().values(); print(s['engine'], *s['fell_back'])"
    done = run_python(code, GT_CONFIG=str(path))
    assert done.stdout.strip() == "numpy nki", done.stderr
    done = run_python(code, GT_CONFIG=str(path), GT_BACKEND="numpy")
    assert done.stdout.strip() == "numpy", done.stderr


def test_an_auto_started_worker_that_refuses_is_an_error_and_not_a_wait():
    done = run_python("import gt; gt.ones(2).numpy()", GT_BACKEND="nki")
    assert "the workers started with it have ended (status 1)" in done.stderr
    assert "gt-worker: backend 'nki' is not available: the AWS Neuron SDK" in done.stderr


def test_kernels_counted_as_mkldnns_are_in_onednns_log():
    available("mkldnn")
    code = """
from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.worker.engine.choose import make
import torch
engine = make("mkldnn")
engine.begin()
square, image, weight = Spec((4, 4), float32), Spec((1, 2, 5, 5), float32), Spec((3, 2, 2, 2), float32)
conv = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
for name, ins, statics in (("matmul", (square, square), {}), ("linear", (square, square), {}), ("conv", (image, weight), conv)):
    row = TABLE[name]
    kind = infer(row, ins, tuple(statics[n] for n in row.statics))
    assert engine.way(kind) == "own"
    print("began", name, flush=True)
    engine.kernel(kind)(*[torch.ones(s.shape) for s in ins])
"""
    text = run_python(code, ONEDNN_VERBOSE="1", DNNL_VERBOSE="1").stdout
    parts = text.split("began ")[1:]
    assert [p.split()[0] for p in parts] == ["matmul", "linear", "conv"]
    assert all(",exec," in p for p in parts), text


def test_products_counted_as_mkls_are_in_mkls_log():
    available("mkl")
    code = """
from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.worker.engine.choose import make
import torch
engine = make("mkl")
engine.begin()
kind = infer(TABLE["matmul"], (Spec((4, 4), float32),) * 2, ())
assert engine.way(kind) == "own"
engine.kernel(kind)(torch.ones(4, 4), torch.ones(4, 4))
"""
    text = run_python(code, MKL_VERBOSE="1").stdout
    assert "MKL_VERBOSE SGEMM" in text, text


def test_the_triton_engine_is_right_under_the_interpreter():
    for name in ("triton", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    code = """
import warnings
warnings.simplefilter("ignore")
from gt.testing import check_backend
from gt.worker.engine.torch.library import LibraryEngine, triton
report = check_backend(LibraryEngine("triton", "cpu", triton), rows=("silu", "gelu", "rms_norm"))
print(report.ways["own"] > 20)
"""
    done = run_python(code, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "True", done.stderr
