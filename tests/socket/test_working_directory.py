"""Files of the working directory do not run in servers and workers, unless the user named them."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import ROOT, Processes, until

TRAP = "import os, pathlib; pathlib.Path(__file__).with_suffix('.ran').touch(); raise SystemExit('imported from here')"
TRAPS = ("msgspec", "numpy", "zmq", "typing", "psutil")
WORK = "import os, gt; os.environ['PYTHONPATH'] = ''; print(gt.ones(3).sum().item())"


@pytest.fixture(autouse=True)
def fresh(processes: Processes) -> None:
    processes.fresh = True  # the test is about the modules that a process loads


@pytest.fixture
def traps(tmp_path: Path) -> list[Path]:
    """Files of libraries' names in the directory that all processes are started in."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(TRAP)
    return [tmp_path / f"{name}.ran" for name in TRAPS]


def test_servers_and_workers_started_by_hand_import_nothing_from_there(processes: Processes, traps: list[Path]) -> None:
    _, port = processes.server()
    processes.worker(port)
    assert not any(trap.exists() for trap in traps)


def test_processes_that_gt_starts_import_nothing_from_there(processes: Processes, traps: list[Path]) -> None:
    script = processes.start("-P", "-c", WORK, GT_BACKEND="numpy")
    assert script.ended() == 0, script.err
    assert script.out == "3.0\n" and not any(trap.exists() for trap in traps)


def test_a_backend_of_that_directory_is_found_by_its_name(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "tests/backends/custom_backend.py").read_text())
    _, port = processes.server()
    worker = processes.worker(port, backend="mine:CustomBackend")
    until(lambda: "mine:CustomBackend" in worker.err, what="the backend is used")
