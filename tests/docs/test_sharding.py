"""Every block of docs/sharding.md, run in order on four workers; and the examples that go with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gt import config
from gt.testing import cluster

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "sharding.md").read_text(), re.S)


def test_the_guide_s_blocks_run():
    names: dict = {}
    with cluster(4):
        for language, block in BLOCKS:
            if language == "python":
                exec(compile(block, "docs/sharding.md", "exec"), names)
            else:
                assert config.parse(block)
        names.clear()
    assert sum(language == "python" for language, _ in BLOCKS) >= 9


def test_the_demo_s_configuration_can_be_read():
    assert {"batch", "parameters", "columns", "rows"} <= set(config.read(str(ROOT / "examples" / "config_sharding.yaml")))


@pytest.mark.parametrize("name", ["signal_demo", "tensor_parallel", "pipeline"])
def test_the_examples_run(name, tmp_path):
    import os

    env = {**os.environ, "PYTHONPATH": str(ROOT), "GT_BACKEND": "numpy", "GT_COLLECTIVES": "mail"}
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, cwd=tmp_path, timeout=80)
    assert done.returncode == 0, done.stderr
    assert done.stdout and "Warning" not in done.stderr
