"""Every block of docs/sharding.md, run in order on four workers; and the examples that go with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gt import config
from gt.testing import cluster

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "sharding.md").read_text(), re.S)


def test_the_guide_s_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with cluster(4):
        for language, block in BLOCKS:
            if language == "python":
                exec(compile(block, "docs/sharding.md", "exec"), names)
            else:
                assert config.parse(block)
        names.clear()
    assert "worker 3" in (tmp_path / "step.svg").read_text()
    assert sum(language == "python" for language, _ in BLOCKS) >= 9


def test_each_picture_of_the_guide_is_drawn_by_its_script(tmp_path, monkeypatch):
    """The script's programs run, and every picture has the parts that its text names."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import figures

    monkeypatch.setattr(figures, "ROWS", 16)
    monkeypatch.setattr(figures, "WIDE", 32)
    shown = re.findall(r"!\[.+?\]\(pictures/(\w+)\.svg\)", (ROOT / "docs" / "sharding.md").read_text())
    assert sorted(shown) == sorted(figures.STRATEGIES)
    wants = {"data_parallel": "all_reduce", "zero": "all_gather", "tensor_parallel": "all_reduce", "pipeline": "exchange"}
    for name in shown:
        with cluster(2):
            figures.draw(name, tmp_path)
        for folder in (tmp_path, figures.PICTURES):
            text = (folder / f"{name}.svg").read_text()
            assert "worker 0" in text and "worker 1" in text and wants[name] in text, folder


def test_the_demo_s_configuration_can_be_read():
    assert {"batch", "parameters", "columns", "rows"} <= set(config.read(str(ROOT / "examples" / "config_sharding.yaml")))


@pytest.mark.parametrize("name", ["signal_demo", "tensor_parallel", "pipeline"])
def test_the_examples_run(name, tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "GT_BACKEND": "numpy", "GT_COLLECTIVES": "mail"}
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, cwd=tmp_path, timeout=80)
    assert done.returncode == 0, done.stderr
    assert done.stdout and "Warning" not in done.stderr
