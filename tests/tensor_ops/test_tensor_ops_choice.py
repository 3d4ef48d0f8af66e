"""Which backend is used: configuration, environment, availability, size."""

import json
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gt.tensor_ops import choice, config
from gt.tensor_ops.check import SelfTest

GOOD = SelfTest(True, 0.0, 0.0)


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GT_TENSOR_OPS_BACKEND", raising=False)
    monkeypatch.delenv("GT_TENSOR_OPS_CONFIG", raising=False)
    return tmp_path / "gt" / "backend.json"


@pytest.fixture
def machine(monkeypatch):
    """A choice on a pretended machine: which backends work there, and whether OpenCL's device is the CPU."""

    def make(*works, opencl_is_cpu=False):
        def module(name):
            away = name == "cuda" or (name == "opencl" and not opencl_is_cpu)
            return SimpleNamespace(name=name, on_device=away, dtypes=("float32",))

        made = choice.Choice()
        made._tests = {name: GOOD if name in works else "pretended to be missing" for name in config.NAMES}
        monkeypatch.setattr(choice, "module", module)
        monkeypatch.setattr(choice, "worthwhile", lambda device, host: 1000)
        return made

    return make


@pytest.mark.parametrize(
    "works,cpu,want",
    [
        (("cuda", "opencl", "cpp", "python"), False, "cuda"),
        (("opencl", "cpp", "python"), False, "opencl"),
        (("opencl", "cpp", "python"), True, "cpp"),
        (("opencl", "python"), True, "opencl"),
        (("python",), False, "python"),
    ],
)
def test_the_best_available_backend_is_chosen(machine, works, cpu, want):
    assert machine(*works, opencl_is_cpu=cpu).active().name == want


def test_the_users_order_is_kept_even_for_a_cpu_opencl_device(machine):
    config.save(config.Config(backend_priority=("opencl", "cpp", "python", "cuda")))
    assert machine("cuda", "opencl", "cpp", "python", opencl_is_cpu=True).active().name == "opencl"


def test_a_preferred_backend_is_used_where_available(machine):
    config.save(config.Config(preferred_backend="cpp"))
    assert machine("cuda", "cpp", "python").active().name == "cpp"
    assert machine("cuda", "python").active().name == "cuda"


def test_forcing_what_is_not_available_raises(machine, monkeypatch):
    config.save(config.Config(force_backend="cuda"))
    with pytest.raises(RuntimeError, match="force_backend.*not available: pretended to be missing"):
        machine("python").active()
    monkeypatch.setenv("GT_TENSOR_OPS_BACKEND", "opencl")
    with pytest.raises(RuntimeError, match="GT_TENSOR_OPS_BACKEND asks for the opencl backend"):
        machine("python").active()
    with pytest.raises(RuntimeError, match="set_backend asks for the cpp backend"):
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
    config.save(config.Config(force_backend="cuda"))
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
    chosen = machine("cuda", "cpp", "python")
    chosen._tests["cuda"] = SelfTest(False, 0.5, 0.0)
    assert chosen.active().name == "cpp"
    assert chosen.reason("cuda") == "its self-test was off by 0.5"


def test_small_arrays_stay_on_the_host_only_where_the_choice_was_free(machine):
    small, large = np.zeros(999, np.float32), np.zeros(1000, np.float32)
    chosen = machine("cuda", "cpp", "python")
    assert (chosen.pick(small).name, chosen.pick(large).name) == ("cpp", "cuda")
    assert chosen.pick(SimpleNamespace(is_cuda=True)).name == "cuda"
    chosen.set("cuda")
    assert chosen.pick(small).name == "cuda"


def test_what_is_worthwhile_is_measured():
    """A device that costs 1 ms to reach and a host of 10 ns an element cross at 100,000 elements."""
    now = [0.0]

    def backend(name, fixed, each):
        def elementwise(op, x, out, dtype):
            now[0] += fixed + each * x.size

        return SimpleNamespace(name=name, dtypes=("float32",), elementwise=elementwise)

    device, host = backend("cuda", 1e-3, 0.0), backend("cpp", 0.0, 1e-8)
    assert choice.worthwhile(device, host, (1 << 15, 1 << 18, 1 << 20), lambda: now[0]) == 1 << 18
    assert choice.worthwhile(host, device, (1 << 18,), lambda: now[0]) == float("inf")


def test_a_saved_config_is_read_back_and_leaves_nothing_else(own_config):
    wanted = config.Config("cpp", ("cpp", "python"), None)
    assert config.load(config.save(wanted)) == wanted
    assert [path.name for path in own_config.parent.iterdir()] == ["backend.json"]
    assert json.loads(own_config.read_text())["preferred_backend"] == "cpp"


def test_a_config_that_cannot_be_written_leaves_the_old_one(own_config, monkeypatch):
    config.save(config.Config("cpp"))

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        config.save(config.Config("python"))
    assert config.load(own_config).preferred_backend == "cpp"
    assert stat.S_ISREG(own_config.stat().st_mode) and len(list(own_config.parent.iterdir())) == 1


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", "not readable as JSON"),
        ("[]", "want an object"),
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


def test_importing_and_computing_on_the_cpu_neither_prints_nor_imports_torch():
    code = (
        "import sys, numpy, gt.tensor_ops as t; t.set_backend('python'); t.silu(numpy.ones(3, 'f4'));"
        "assert 'torch' not in sys.modules and 'pyopencl' not in sys.modules"
    )
    done = fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
