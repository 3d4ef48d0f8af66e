"""`gt backends ...`, by its parser and functions."""

import argparse
import importlib.util
import json

import pytest

from gt.tensor_ops import choice
from gt.tensor_ops import command as cli


@pytest.fixture
def gt(tmp_path, monkeypatch, capsys):
    """Run a command line; returns the exit code and the output."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GT_TENSOR_OPS_CONFIG", raising=False)
    monkeypatch.delenv("GT_TENSOR_OPS_BACKEND", raising=False)
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())

    def run(*words):
        args = parser.parse_args(["backends", *words])
        code = args.run(args)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_the_list_and_its_json(gt):
    code, text = gt()
    assert code == 0 and "numpy" in text and "nki" in text
    code, text = gt("--json")
    rows = json.loads(text)
    assert code == 0 and {"name", "available", "reason", "self_test"} <= set(rows[0])


def test_capabilities_name_every_backend(gt):
    code, text = gt("test-capabilities")
    assert code == 0 and all(name in text for name in ("C++ compiler", "cuda", "opencl", "cpp", "python   "))


def test_configure_shows_and_changes(gt):
    assert gt("configure", "--backend=python")[0] == 0
    code, text = gt("configure", "--show")
    assert code == 0 and '"preferred_backend": "python"' in text and "in use: python" in text
    assert gt("configure", "--backend=auto", "--priority=python, cpp")[0] == 0
    code, text = gt("configure", "--show")
    assert '"preferred_backend": null' in text and "in use: python" in text


def test_configure_refuses_unknown_settings(gt):
    code, text = gt("configure", "--priority=cpp,gpu")
    assert code == 1 and "no backend 'gpu': known are cuda, opencl, cpp, python" in text


@pytest.mark.slow
def test_building_all_needs_no_name(gt):
    code, text = gt("build")
    assert code == 0 and all(f"{name}: " in text for name in ("cpp", "opencl", "cuda"))


def test_building_an_unknown_name_lists_the_known(gt, capsys):
    with pytest.raises(SystemExit):
        gt("build", "metal")
    assert "no kernels to build for 'metal': choose from cpp, opencl, cuda" in capsys.readouterr().err


def test_a_build_that_cannot_succeed_fails_only_on_request(gt):
    missing = [name for name in ("cuda", "opencl") if choice.process.reason(name)]
    if not missing:
        pytest.skip("cuda and opencl both work here")
    code, text = gt("build", missing[0])
    assert code == 1 and "not available" in text


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_benchmark_prints_a_table_and_writes_a_png(gt, tmp_path):
    code, text = gt("benchmark", "--rows=16", f"--output={tmp_path / 'chart.png'}")
    assert code == 0 and "rms_norm" in text and "times NumPy" in text
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    code, text = gt("benchmark", "--rows=16", f"--output={tmp_path / 'nowhere' / 'chart.png'}")
    assert code == 1 and "no chart: " in text and "nowhere" in text


def test_benchmark_wants_rows(gt, capsys):
    with pytest.raises(SystemExit):
        gt("benchmark", "--rows=0")
    assert "expected a number of rows of 1 or more, got '0'" in capsys.readouterr().err
