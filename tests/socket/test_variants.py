"""`GT_TRACE=0 make test` runs with it: the variables of `make test-variants` reach sessions, workers and processes of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT

from tests.conftest import VARIANTS

PROBE = """
import os
import gt
from gt import environment
from gt.testing import cluster
from processes import Processes

SCRIPT = '''
import gt
from gt import environment
x = gt.ones(2)
for _ in range(30):
    for _ in range(10): x = (x * 0.5 + 1).abs()
    x.numpy()
[stats] = gt.debug.get_worker_stats().values()
ways = stats["replay"]["unit_calls"] > 0, environment.AUTO_COMPILE.value(), environment.LOCAL_ANSWERS.value()
print(gt.debug.is_native(), stats["replay"]["hits"] > 0, *ways)
'''

def test_probe(tmp_path):
    with cluster(1, "numpy") as made:
        ways = gt.debug.is_native(), made.sessions[0].tracer is not None, made.workers[0].units is not None
        print("SESSION", *ways, environment.AUTO_COMPILE.value(), made.sessions[0].local.on)
    with Processes(tmp_path) as processes:
        script = processes.script(SCRIPT)
        assert script.ended() == 0, script.err
        print("SCRIPT", script.out)
    print("GT_VERBOSE", "GT_VERBOSE" in os.environ)
"""


@pytest.mark.parametrize("varied", [False, True], ids=["without", "with"])
def test_the_variables_reach_all_that_tests_compute_with(tmp_path: Path, varied: bool) -> None:
    (tmp_path / "test_probe.py").write_text(PROBE)
    ways = {"GT_NATIVE": "0", "GT_TRACE": "0", "GT_LOCAL_ANSWERS": "0", "GT_WORKER_BATCH_SIZE": "10", "GT_AUTO_COMPILE": "1"}
    given = ways if varied else {}
    assert not given or given.keys() == set(VARIANTS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "socket"), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}"], env={**environment, **given, "GT_VERBOSE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    native = str(not varied)  # and traced, which are the defaults; a unit is made of instructions that are no calls of a trace
    assert f"SESSION {native} {native} {varied} {varied} {native}" in done.stdout, done.stdout
    assert f"SCRIPT {native} {native} {varied} {varied} {native}" in done.stdout, done.stdout
    assert "GT_VERBOSE False" in done.stdout, "all others are taken away"
