"""Which backend is used: configuration, environment, availability, size."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gt.backends import BackendRow, Registry
from gt.backends.facts import Found, Missing
from gt.backends.rows import ARRAYS
from gt.tensor_ops import choice, config, speeds

GOOD = Found("pretended", "1", "everything", 0.0, 0.0)


def pretended(outcomes):
    """A choice over a registry whose probes found these, by the names of gt.tensor_ops."""
    rows = [BackendRow(ARRAYS[name].row, name, lambda found=found: found, arrays=name) for name, found in outcomes.items()]
    registry = Registry(tuple(rows))
    return choice.KernelChoice(lambda: registry)


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(speeds, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("GT_TENSOR_OPS_BACKEND", raising=False)
    monkeypatch.delenv("GT_TENSOR_OPS_CONFIG", raising=False)
    return tmp_path / "gt" / "backend.json"


@pytest.fixture
def machine(monkeypatch):
    """A choice on a pretended machine: which backends work there, and how long each takes for small and large arrays."""
    took = {"cuda": (90, 1), "opencl": (80, 3), "cpp": (1, 4), "python": (50, 60)}

    def make(*works, **changed):
        def module(name):
            return SimpleNamespace(name=name, on_device=name == "cuda", dtypes=("float32",))

        def measure(backends):
            assert set(backends) <= set(works)
            return {name: dict(zip((1000, 10**6), (took | changed)[name])) for name in backends}

        made = pretended({name: GOOD if name in works else Missing("pretended to be missing") for name in config.NAMES})
        monkeypatch.setattr(choice, "module", module)
        monkeypatch.setattr(speeds, "measure", measure)
        return made

    return make


@pytest.mark.parametrize(
    "works,changed,want",
    [
        (("cuda", "opencl", "cpp", "python"), {}, "cuda"),
        (("opencl", "cpp", "python"), {}, "opencl"),
        (("opencl", "cpp", "python"), {"opencl": (80, 5)}, "cpp"),
        (("cuda", "cpp", "python"), {"cuda": (90, 7)}, "cpp"),
        (("cpp", "python"), {"python": (1, 1)}, "python"),
        (("python",), {}, "python"),
    ],
)
def test_the_backend_that_is_fastest_here_is_chosen(machine, works, changed, want):
    assert machine(*works, **changed).active().name == want


def test_the_measurement_is_kept_for_the_next_process(machine, monkeypatch):
    assert machine("opencl", "cpp", "python").active().name == "opencl"
    again = machine("opencl", "cpp", "python")
    monkeypatch.setattr(speeds, "measure", lambda backends: pytest.fail("measured again"))
    again = pretended({"opencl": GOOD, "cpp": GOOD})  # NumPy, which nobody needs, is not even tried
    assert again.active().name == "opencl"


def test_a_kept_measurement_is_not_believed_where_things_changed(machine, monkeypatch):
    assert machine("opencl", "cpp", "python").active().name == "opencl"
    assert machine("cpp", "python").active().name == "cpp"  # OpenCL is gone
    monkeypatch.setattr(speeds, "identity", lambda: "another machine or version")
    assert machine("opencl", "cpp", "python").active().name == "opencl"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cpp": 3}', '{"cpp": {"many": 1}}'])
def test_a_spoiled_file_of_speeds_is_measured_again(machine, text):
    speeds.keep({"cpp": {1: 1.0}})
    speeds._path().write_text(text)
    assert machine("cpp", "python").active().name == "cpp"
    assert set(speeds.kept()) == {"cpp", "python"}


@pytest.mark.parametrize("order", [config.NAMES, ("opencl", "cpp", "python", "cuda"), ("python", "cpp")])
def test_an_order_that_is_written_is_obeyed_even_the_usual_one(machine, order):
    config.save(config.TensorOpsConfig(backend_priority=order))
    chosen = machine("opencl", "cpp", "python", cpp=(1, 1), opencl=(99, 99), python=(99, 99))
    want = next(name for name in order if name != "cuda")
    assert chosen.active().name == want == chosen.pick(np.zeros(3, np.float32)).name
    config.save(config.TensorOpsConfig())
    assert machine("opencl", "cpp", "python", cpp=(1, 1)).active().name == "cpp"


def test_a_preferred_backend_is_used_where_available(machine):
    config.save(config.TensorOpsConfig(preferred_backend="cpp"))
    assert machine("cuda", "cpp", "python").active().name == "cpp"
    assert machine("cuda", "python").active().name == "cuda"


def test_forcing_an_unavailable_backend_raises(machine, monkeypatch):
    config.save(config.TensorOpsConfig(force_backend="cuda"))
    with pytest.raises(RuntimeError, match="force_backend.*not available: pretended to be missing"):
        machine("python").active()
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "opencl")
    with pytest.raises(RuntimeError, match="GT_TENSOR_OPS_BACKEND requests the opencl backend"):
        machine("python").active()
    with pytest.raises(RuntimeError, match="set_backend requests the cpp backend"):
        machine("python").set("cpp")


def test_auto_leaves_the_choice_to_the_configuration(machine, monkeypatch):
    chosen = machine("cuda", "cpp", "python")
    chosen.set("cpp")
    chosen.set("auto")
    assert chosen.active().name == "cuda"
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "cpp")
    chosen.set("auto")
    assert chosen.active().name == "cpp"
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "auto")
    assert machine("cuda", "cpp", "python").active().name == "cuda"


def test_set_backend_overrules_the_environment_and_that_the_file(machine, monkeypatch):
    config.save(config.TensorOpsConfig(force_backend="cuda"))
    chosen = machine("cuda", "cpp", "python")
    assert chosen.active().name == "cuda"
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "cpp")
    assert machine("cuda", "cpp", "python").active().name == "cpp"
    chosen.set("python")
    assert chosen.active().name == "python"
    chosen.set(None)
    assert chosen.active().name == "cpp"


def test_unknown_names_list_the_known_ones(machine, monkeypatch):
    with pytest.raises(ValueError, match="no backend 'gpu': known are cuda, opencl, cpp, python"):
        machine("python").set("gpu")
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "gpu")
    with pytest.raises(ValueError, match="no backend 'gpu'"):
        machine("python").active()


def test_a_backend_with_wrong_numbers_is_not_used(machine):
    machine("cpp", "python")
    chosen = pretended({"cuda": replace(GOOD, max_abs_err=0.5), "opencl": Missing("none"), "cpp": GOOD, "python": GOOD})
    assert chosen.active().name == "cpp"
    assert chosen.reason("cuda") == "its numbers are wrong by 0.5"


def test_small_arrays_stay_on_the_host_only_where_the_choice_was_free(machine):
    small, large = np.zeros(10**6 - 1, np.float32), np.zeros(10**6, np.float32)
    chosen = machine("cuda", "cpp", "python")
    assert (chosen.pick(small).name, chosen.pick(large).name) == ("cpp", "cuda")
    assert chosen.pick(SimpleNamespace(is_cuda=True)).name == "cuda"
    chosen.set("cuda")
    assert chosen.pick(small).name == "cuda"


def test_arrays_that_lie_on_a_gpu_go_there_where_the_choice_was_free(machine):
    there = SimpleNamespace(is_cuda=True)
    chosen = machine("cuda", "cpp", "python", cuda=(90, 90))
    assert (chosen.active().name, chosen.pick(there).name) == ("cpp", "cuda")
    chosen.set("cpp")
    assert chosen.pick(there).name == "cpp"


def test_speeds_are_measured_for_small_and_large_arrays():
    """A device that costs 1 ms to reach and a host of 10 ns an element cross at 100,000 elements."""
    now = [0.0]

    def backend(name, fixed, each):
        def work(x):
            now[0] += fixed + each * x.size

        return SimpleNamespace(
            name=name,
            dtypes=("float32",),
            on_device=False,
            elementwise=lambda op, x, out, dtype: work(x),
            rms_norm=lambda x, weight, out, eps, dtype: work(x),
        )

    backends = {"cuda": backend("cuda", 1e-3, 0.0), "cpp": backend("cpp", 0.0, 1e-8), "python": backend("python", 0.0, 1e-6)}
    taken = speeds.measure(backends, lambda: now[0])
    assert speeds.fastest(taken) == "cuda" and speeds.small_inputs(taken) == ("cpp", 1 << 20)
    assert list(taken["python"]) == [1 << 12, 1 << 16]  # hopeless there, so not measured at larger sizes
    taken = speeds.measure({"cpp": backends["cpp"], "python": backends["python"]}, lambda: now[0])
    assert speeds.fastest(taken) == "cpp" and speeds.small_inputs(taken) is None


def test_real_backends_can_be_measured(monkeypatch):
    monkeypatch.setattr(speeds, "SIZES", (1 << 12,))
    available = {name: choice.module(name) for name in ("cpp", "python") if choice.process.reason(name) is None}
    taken = speeds.measure(available)
    assert set(taken) == set(available) and all(seconds > 0 for times in taken.values() for seconds in times.values())


def test_a_saved_config_is_read_back_and_leaves_nothing_else(own_config):
    wanted = config.TensorOpsConfig("cpp", ("cpp", "python"), None)
    assert config.load(config.save(wanted)) == wanted
    assert [path.name for path in own_config.parent.iterdir()] == ["backend.json"]
    assert json.loads(own_config.read_text())["preferred_backend"] == "cpp"


def test_a_config_that_cannot_be_written_leaves_the_old_one(own_config, monkeypatch):
    config.save(config.TensorOpsConfig("cpp"))

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        config.save(config.TensorOpsConfig("python"))
    assert config.load(own_config).preferred_backend == "cpp"
    assert stat.S_ISREG(own_config.stat().st_mode) and len(list(own_config.parent.iterdir())) == 1


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", "not readable as JSON"),
        ("[]", "expected an object"),
        ('{"prefered_backend": "cpp"}', "no key 'prefered_backend': known are preferred_backend"),
        ('{"preferred_backend": "gpu"}', "no backend 'gpu': known are"),
        ('{"preferred_backend": 3}', "no backend 3"),
        ('{"backend_priority": "cpp"}', "must be a list"),
        ('{"backend_priority": []}', "must be a list"),
        ('{"backend_priority": ["cpp", "cpp"]}', "different backends"),
    ],
)
def test_a_bad_config_names_its_file_and_the_mistake(tmp_path, text, message):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path.name}: .*{message}"):
        config.load(path)


def test_a_config_that_the_environment_names_must_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("GT_TENSOR_OPS_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(FileNotFoundError, match="which GT_TENSOR_OPS_CONFIG names"):
        config.load()


def fresh(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=False
    )


def test_the_environment_decides_in_a_fresh_process():
    done = fresh("from gt import tensor_ops; print(tensor_ops.get_backend())", GT_TENSOR_OPS_BACKEND="python")
    assert done.stdout.strip() == "python" and done.stderr == ""


@pytest.mark.parametrize("name,info", [("cpp", "optimization"), ("cuda", "cuda"), ("opencl", "opencl")])
def test_each_backend_is_a_module_at_the_top_as_the_guide_has_it(tmp_path, name, info):
    code = (
        f"import tensor_ops_{name} as top; from gt import tensor_ops_{name} as ours\n"
        f"print(top.silu is ours.silu, top.gelu is ours.gelu, top.rms_norm is ours.rms_norm, callable(top.get_{info}_info))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")


def test_importing_and_computing_on_the_cpu_neither_prints_nor_imports_torch():
    code = (
        "import sys, numpy, gt.tensor_ops as t; t.set_backend('python'); t.silu(numpy.ones(3, 'f4'));"
        "assert 'torch' not in sys.modules and 'pyopencl' not in sys.modules"
    )
    done = fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
