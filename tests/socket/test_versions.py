"""A pool that is renewed worker by worker: processes of really different versions of GT, each loaded from a tree of its own."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from processes import ROOT, Processes, until

import gt

HOLDS = """
import sys, numpy as np, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
a = np.arange(48, dtype="f4").reshape(6, 8)
with gt.signal("rows"):
    x = gt.from_numpy(a)
w = gt.from_numpy(a.T.copy())
(x @ w).sum().item()
print("holds", flush=True)
for _ in sys.stdin:
    assert (x.numpy() == a).all() and ((x @ w).numpy() == a @ a.T).all()
    print("still on", *sorted(gt.debug.get_worker_stats()), flush=True)
"""


def release(folder: Path, last: int, middle: int = 0) -> str:
    """The version that comes so many after this one, in a tree of its own; returns the tree's path."""
    major, minor, patch = map(int, gt.__version__.split("."))
    version = f"{major}.{minor + middle}.{patch + last}"
    tree = folder / version
    shutil.copytree(ROOT / "gt", tree / "gt", ignore=shutil.ignore_patterns("__pycache__"))
    first = tree / "gt" / "__init__.py"
    text = first.read_text()
    assert f'"{gt.__version__}"' in text
    first.write_text(text.replace(f'"{gt.__version__}"', f'"{version}"'))
    return str(tree)


@pytest.mark.slow
def test_workers_of_a_newer_patch_join_old_ones_drain_and_others_are_refused(processes: Processes, tmp_path: Path) -> None:
    newer, other = release(tmp_path, 1), release(tmp_path, 0, middle=1)
    server, port = processes.server("--expect", "2")
    old = [processes.worker(port, "--id", f"old{i}") for i in range(2)]
    script = processes.script(HOLDS, f"localhost:{port}").wait_for("holds")
    for i in range(2):
        processes.start(
            "-P", "-m", "gt.worker", "-p", str(port), "--backend", "numpy", "--id", f"new{i}",
            fresh=True, PYTHONPATH=newer, GT_VERBOSE="1",
        )  # fmt: skip
        until(lambda: "is worker" in processes.all[-1].err, what="a newer worker")
        old[i].kill(signal.SIGTERM)
        assert old[i].ended() == 0 and f"worker old{i} (index {i}) is about to leave" in server.err, old[i].err + server.err
        script.go()
        until(lambda n=i: script.out.count("still on") == n + 1 or script.popen.poll() is not None, what="its tensors")
    assert script.out.endswith("still on new0 new1\n"), script.out + script.err
    found = processes.start("-P", "-m", "gt.worker", "-p", str(port), "--backend", "numpy", fresh=True, PYTHONPATH=other)
    assert found.ended() != 0
    assert f"GT {Path(other).name} does not fit GT {gt.__version__}" in found.err, found.err
    versions = [Path(tree).name for tree in (newer, other)]
    assert len({gt.__version__, *versions}) == 3
