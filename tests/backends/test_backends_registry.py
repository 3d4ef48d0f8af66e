"""The registry: its rows, their facts, and that one probe holds up no other."""

import importlib.util
import threading
from pathlib import Path

import pytest

from gt import backends, cli, tensor_ops
from gt.backends.facts import Found, Missing
from gt.backends.memory import remembered
from gt.backends.rows import ARRAYS
from gt.persistent import choice as persistent
from gt.worker.engine.choose import make

KEYS = {
    "name", "display_name", "available", "reason", "library", "library_version", "device_count", "compute_capability",
    "compute_units", "max_memory", "max_shared_memory", "dtypes", "executes", "self_test",
}  # fmt: skip
NAMES = ["cuda", "triton", "cudnn", "mps", "cpp", "opencl", "openmp", "mkl", "mkldnn", "cpu", "numpy", "pytorch", "nki"]


def found(error=0.0):
    return Found("a library", "1.0", "everything", error, 0.001)


def registry(**probes):
    return backends.Registry(tuple(backends.BackendRow(name, name.title(), probe) for name, probe in probes.items()))


def test_every_backend_has_all_facts():
    assert [row.name for row in backends.ROWS] == NAMES
    for name in NAMES:
        info = backends.get_backend_info(name)
        assert set(info) == KEYS
        assert set(info["self_test"]) == {"passed", "max_abs_err", "seconds"}
        assert info["available"] == info["self_test"]["passed"] == (info["reason"] is None)
        assert backends.is_backend_available(name) == info["available"]
        if info["available"]:
            assert info["library"] and info["library_version"] and info["dtypes"] and info["executes"]
            assert info["device_count"] >= 1 and info["compute_units"] >= 1 and info["max_memory"] > 0
        else:
            assert info["reason"] and info["device_count"] == 0


def test_available_backends_come_in_the_fixed_order():
    available = backends.get_available_backends()
    assert available == [name for name in NAMES if name in available]
    assert {"numpy", "cpu"} <= set(available) and "nki" not in available


def test_onednn_is_another_name_of_mkldnn():
    assert backends.get_backend_info("onednn") == backends.get_backend_info("mkldnn")


def test_an_unknown_name_lists_the_known_ones():
    for call in (backends.is_backend_available, backends.get_backend_info, backends.set_default_backend):
        with pytest.raises(ValueError, match="no backend 'torhc': known are cuda, triton, .*onednn"):
            call("torhc")
        with pytest.raises(TypeError, match="a backend's name: expected a string, got NoneType"):
            call(None)


def test_a_backend_with_wrong_numbers_is_not_available():
    made = registry(numpy=lambda: found(error=0.5))
    assert made.reason("numpy") == "its numbers are wrong by 0.5"
    info = made.info("numpy")
    assert not info["available"] and info["self_test"] == {"passed": False, "max_abs_err": 0.5, "seconds": 0.001}


def test_a_probe_that_fails_is_a_reason_and_not_an_error():
    def broken():
        raise OSError("driver mismatch")

    assert registry(cuda=broken).reason("cuda") == "its probe raised OSError: driver mismatch"


def test_a_probe_runs_once():
    ran = []
    made = registry(numpy=lambda: ran.append(1) or found())
    threads = [threading.Thread(target=made.reason, args=("numpy",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 1


def test_a_slow_probe_holds_up_no_other():
    go = threading.Event()
    made = registry(cuda=lambda: go.wait(30) and Missing("slow"), numpy=found)
    slow = threading.Thread(target=made.reason, args=("cuda",))
    slow.start()
    assert made.reason("numpy") is None
    go.set()
    slow.join(30)
    assert made.reason("cuda") == "slow"


def test_the_default_is_the_setting_then_the_environment_then_pytorch_or_numpy(monkeypatch):
    monkeypatch.delenv("GT_BACKEND", raising=False)
    assert registry(numpy=found, pytorch=found).default() == "pytorch"
    made = registry(numpy=found, pytorch=lambda: Missing("not installed"), cpp=found)
    assert made.default() == "numpy"
    monkeypatch.setenv("GT_BACKEND", "cpp")
    assert made.default() == "cpp"
    made.set_default("numpy")
    assert made.default() == "numpy"
    with pytest.raises(ValueError, match="'pytorch', which is not available: not installed"):
        made.set_default("pytorch")
    monkeypatch.setenv("GT_BACKEND", "pytorch")
    with pytest.raises(ValueError, match="GT_BACKEND requests backend 'pytorch'"):
        registry(pytorch=lambda: Missing("not installed")).default()


def test_engines_array_ops_decoding_and_the_command_line_read_one_registry(monkeypatch, capsys):
    """One probe a backend, whoever asks; and one default."""
    ran = []
    rows = [row._replace(probe=lambda name=row.name: ran.append(name) or Missing("pretended")) for row in backends.ROWS]
    monkeypatch.setattr(backends, "_registry", backends.Registry(tuple(rows)))
    with pytest.raises(ValueError, match="'cpp' is not available: pretended"):
        make("cpp")
    with pytest.raises(ValueError, match="'cpp' is not available: pretended"):
        persistent.choose("cpp", ())
    with pytest.raises(RuntimeError, match="cpp backend, which is not available: pretended"):
        tensor_ops.set_backend("cpp")
    assert cli.main(["backends"]) == 0 and capsys.readouterr().out.count("pretended") == len(rows)
    assert ran.count("cpp") == 1 and make("numpy").name == "numpy"  # which need only be installed


def test_the_default_that_was_set_is_that_of_array_ops_too(monkeypatch):
    rows = tuple(row._replace(probe=found) for row in backends.ROWS)
    monkeypatch.setattr(backends, "_registry", backends.Registry(rows))
    backends.set_default_backend("numpy")
    assert backends.get_default_backend() == persistent.choose(None, ()).backend == "numpy"
    assert tensor_ops.get_backend() == "python"
    tensor_ops.set_backend(None)
    assert backends.registry().arrays_default is None


def test_the_configuration_of_workers_names_the_default_where_nobody_else_does(monkeypatch, tmp_path):
    path = tmp_path / "gt.yaml"
    path.write_text("backend: cpp\nfallback_backends: [numpy]\n")
    monkeypatch.delenv("GT_BACKEND", raising=False)
    monkeypatch.delenv("GT_FALLBACK_BACKENDS", raising=False)
    monkeypatch.setenv("GT_CONFIG", str(path))
    made = registry(cpp=found, numpy=found, opencl=found)
    assert made.default() == made.asked() == "cpp" and backends.fallbacks() == ("numpy",)
    monkeypatch.setenv("GT_BACKEND", "opencl")
    assert made.default() == made.asked() == "opencl"


def test_every_engine_that_a_row_names_is_there():
    for path in [row.engine for row in backends.ROWS if row.engine] + [f"{a.module}:name" for a in ARRAYS.values()]:
        module, _, name = path.partition(":")
        place = importlib.util.find_spec(module)
        assert place is not None and f"{name}" in Path(place.origin).read_text(), path


def test_a_slow_probe_is_remembered_until_the_library_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = []

    def probe():
        ran.append(1)
        return found()

    assert remembered("mkl", "numpy", probe) == remembered("mkl", "numpy", probe) == found()
    assert len(ran) == 1
    remembered("mkl", "pytest", probe)
    assert len(ran) == 2
    assert remembered("mkldnn", "numpy", lambda: Missing("no")) == remembered("mkldnn", "numpy", probe) == Missing("no")
    for path in tmp_path.rglob("*.json"):
        path.write_text("{broken")
    remembered("mkl", "numpy", probe)
    assert len(ran) == 3


def test_listing_prints_a_table_and_returns_the_rows(capsys):
    rows = backends.list_backends(verbose=True)
    printed = capsys.readouterr().out
    assert [row["name"] for row in rows] == NAMES
    assert all(name in printed for name in NAMES) and "self-test" in printed


@pytest.mark.parametrize("line, version", [
    ("MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture", "2024.0 Update 2"),
    ("MKL_VERBOSE Intel(R) MKL 2020.0 Product build 20191122", "MKL 2020.0"),
    ("onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa7)", "3.12.0"),
])  # fmt: skip
def test_a_library_s_own_log_gives_its_version(line, version):
    from gt.backends.probes import _logged_version

    assert _logged_version(["", line]) == version
