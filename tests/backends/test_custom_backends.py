"""Backends that users bring: registered, found as entry points or by module:Class, adapted to engines, and checked."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from custom_backend import Bare, CustomBackend, Forgetful, Liar, Shaping, Skeleton, Unreadable

import gt
from gt import backends
from gt.backends import Registry
from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.testing import check_backend, cluster
from gt.worker.engine.choose import make
from gt.worker.engine.custom import CustomEngine

HERE = Path(__file__).parent


@pytest.fixture
def registry(monkeypatch):
    made = Registry(backends.ROWS)
    monkeypatch.setattr(backends, "_registry", made)
    return made


def loaded(engine, array):
    return engine.load(memoryview(array.tobytes()), Spec(array.shape, float32), True)


def test_the_completed_skeleton_passes_and_runs_ops_of_its_own():
    report = check_backend(CustomBackend)
    assert report.rows == len([r for r in TABLE.values() if r.kernel is not None])
    assert report.ways["own"] > 50 and report.ways["decomposed"] > 5 and report.ways["bridged"] > 1000


def test_a_backend_that_can_only_add_passes_too():
    report = check_backend(Bare, rows=("add", "exp", "matmul", "softmax", "sum"))
    assert report.rows == 5 and report.ways["own"] > 0 and report.ways["bridged"] > report.ways["own"]


def test_wrong_numbers_are_refused_or_found():
    with pytest.raises(ValueError, match="backend 'Liar' computes wrong results: its exp.* gives .*: expected"):
        check_backend(Liar)
    with pytest.raises(AssertionError, match="backend 'Forgetful' is wrong in"):
        check_backend(Forgetful, rows=("add", "exp"))


def test_the_guides_skeleton_passes_as_it_stands():
    report = check_backend(Skeleton, rows=("add", "relu", "exp", "matmul"))
    assert report.ways["own"] > 0 and report.ways["bridged"] > 0


def test_an_error_of_the_backend_is_told_with_its_sample():
    with pytest.raises(AssertionError, match=r"load and store of \w+ \(2, 3\): RuntimeError: lost it"):
        check_backend(Unreadable, rows=("exp",))


def test_a_decomposed_op_stays_inside_the_backend():
    engine = CustomEngine("mine", CustomBackend)
    x, w = np.eye(4, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    kind = infer(TABLE["linear"], (Spec((4, 4), float32), Spec((3, 4), float32)), ())
    assert engine.way(kind) == "decomposed"
    run = engine.kernel(kind)
    engine.backend.calls.clear()
    y = run(loaded(engine, x), loaded(engine, w))
    assert engine.backend.calls == ["transpose", "matmul"]
    np.testing.assert_array_equal(engine.get(y), w.T)


def test_creation_and_reshaping_are_asked_of_a_backend_that_has_them():
    engine = CustomEngine("mine", Shaping)
    matrix = Spec((2, 3), float32)
    kinds = {
        "full": infer(TABLE["full"], (float,), ((40, 2), float32.code)),
        "iota": infer(TABLE["iota"], (float, float), ((7,), (7,), (0,), gt.float64.code)),
        "reshape": infer(TABLE["reshape"], (matrix,), ((6, 1),)),
        "permute": infer(TABLE["permute"], (Spec((2, 3, 4), gt.int64),), ((2, 0, 1),)),
        "expand": infer(TABLE["expand"], (matrix,), ((5, 2, 3),)),
    }
    assert {name: engine.way(kind) for name, kind in kinds.items()} == dict.fromkeys(kinds, "own")
    engine.backend.calls.clear()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(engine.get(engine.kernel(kinds["full"])(2.5)), np.full((40, 2), 2.5, np.float32))
    np.testing.assert_array_equal(engine.get(engine.kernel(kinds["iota"])(1.0, 0.5)), 1 + np.arange(7) * 0.5)
    np.testing.assert_array_equal(engine.get(engine.kernel(kinds["expand"])(loaded(engine, x))), np.broadcast_to(x, (5, 2, 3)))
    assert engine.backend.calls == ["full", "iota", "expand"]


def test_tensors_it_cannot_create_or_reshape_are_numpys():
    engine = CustomEngine("mine", Shaping)
    assert engine.way(infer(TABLE["eye"], (), ((2, 2), (2, 2), (0, 0), float32.code))) == "bridged"
    with pytest.warns(RuntimeWarning, match="'mine': its flip.* NumPy computes it instead"):
        assert engine.way(infer(TABLE["flip"], (Spec((2, 3), float32),), ((1,),))) == "bridged"
    half = infer(TABLE["full"], (float,), ((2,), gt.bfloat16.code))
    assert engine.way(half) == "bridged"  # how a number is rounded to 16 bits is GT's to say
    assert CustomEngine("plain", CustomBackend).way(infer(TABLE["full"], (float,), ((2,), float32.code))) == "bridged"


@pytest.mark.filterwarnings("ignore:backend 'Shaping'. its flip")
def test_a_backend_that_creates_and_reshapes_passes_on_rows_of_both_families():
    rows = tuple(row.name for row in TABLE.values() if row.family in ("create", "movement"))
    own, plain = (check_backend(backend, rows).ways["own"] for backend in (Shaping, CustomBackend))
    assert own >= plain + 20


def test_a_program_runs_its_creation_and_reshaping_there():
    with cluster(1) as made:
        engine = made.workers[0].executor.engine = CustomEngine("mine", Shaping)
        x = gt.arange(12, dtype=gt.float32).reshape(3, 4)
        y = (x + gt.ones(3, 4)).reshape(2, 6)
        np.testing.assert_array_equal(y.numpy(), (np.arange(12, dtype=np.float32) + 1).reshape(2, 6))
        assert {"iota", "full", "reshape", "add"} <= set(engine.backend.calls)
        assert made.workers[0].stats()["kernels"].get("bridged", 0) == 0


def test_a_tensor_is_dropped_with_its_last_use():
    engine = CustomEngine("mine", CustomBackend)
    a = loaded(engine, np.ones(3, np.float32))
    kind = infer(TABLE["add"], (a.spec, a.spec), ())
    b = engine.kernel(kind)(a, a)
    assert set(engine.tensors) == {a.id, b.id}
    del a, b
    assert not engine.tensors


def test_an_op_that_is_wrong_only_for_some_dtypes_is_left_to_numpy_with_a_warning():
    class Single(CustomBackend):
        def unary_op(self, result_id, op, input_id):
            super().unary_op(result_id, op, input_id)
            if self.tensors[result_id].dtype == np.float64:
                self.tensors[result_id] = self.tensors[result_id].astype(np.float32).astype(np.float64)

    engine = CustomEngine("single", Single)
    kind = infer(TABLE["exp"], (Spec((2, 3), gt.float64),), ())
    with pytest.warns(RuntimeWarning, match="'single': its exp.*float64.* NumPy computes it instead"):
        assert engine.way(kind) == "bridged"
    assert engine.way(infer(TABLE["exp"], (Spec((2, 3), float32),), ())) == "own"


def test_registering_makes_a_name_like_any_other(registry):
    backends.register_backend("mine", CustomBackend)
    backends.register_backend("mine", CustomBackend)
    assert backends.is_backend_available("mine") and "mine" in backends.get_available_backends()
    assert backends.get_backend_info("mine")["library"] == "custom_backend.CustomBackend"
    assert make("mine").name == "mine"
    backends.set_default_backend("mine")
    assert backends.asked_for() == "custom_backend:CustomBackend"


@pytest.mark.parametrize("name", ["cpp", "onednn", "two words", ""])
def test_a_name_that_is_taken_or_none_is_refused(registry, name):
    with pytest.raises(ValueError, match="is registered already|a backend's name: expected one word"):
        backends.register_backend(name, CustomBackend)


def test_a_class_without_the_methods_is_refused_by_name():
    class Half:
        def create_tensor(self, tensor_id, data, dtype, shape): ...

    with pytest.raises(TypeError, match=r"Half lacks binary_op\(result_id, op, left_id, right_id\)"):
        backends.register_backend("half", Half)
    with pytest.raises(TypeError, match="a backend: expected a class"):
        backends.register_backend("half", Half())


def test_a_class_that_workers_cannot_import_is_an_error_before_they_start(registry):
    class Local(CustomBackend):
        pass

    backends.register_backend("local", Local)
    backends.set_default_backend("local")
    with pytest.raises(ValueError, match="where workers cannot find it"):
        backends.asked_for()


def test_a_backend_is_found_by_its_path(registry):
    assert make("custom_backend:CustomBackend").name == "custom_backend:CustomBackend"
    with pytest.raises(ValueError, match="not available: No module named 'nowhere'"):
        make("nowhere:Class")
    with pytest.raises(ValueError, match="module 'custom_backend' has no 'Missing'"):
        make("custom_backend:Missing")


def test_a_backend_is_found_as_an_entry_point(registry, tmp_path, monkeypatch):
    about = tmp_path / "plugged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = ["plugged = custom_backend:CustomBackend", "broken = nowhere:Class", "cpp = custom_backend:Bare"]
    (about / "entry_points.txt").write_text("[gt.backends]\n" + "\n".join(points))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match="custom_backend:Bare is not used: a backend 'cpp' is registered"):
        assert make("plugged").name == "plugged"
    assert "cannot be loaded: No module named 'nowhere'" in backends.get_backend_info("broken")["reason"]


def test_a_worker_process_runs_it(tmp_path):
    code = """
import gt
y = (gt.ones(2, 3) + gt.ones(2, 3)).exp()
assert abs(y.numpy() - 7.389056).max() < 1e-5
(stats,) = gt.debug.get_worker_stats().values()
assert stats["engine"] == "custom_backend:CustomBackend" and stats["base"] == "numpy", stats
assert stats["kernels"]["own"] >= 2, stats["kernels"]
print("ran")
"""
    path = os.pathsep.join(filter(None, [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": path,
        "HOME": str(tmp_path),
        "GT_BACKEND": "custom_backend:CustomBackend",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stdout.strip() == "ran", done.stderr
