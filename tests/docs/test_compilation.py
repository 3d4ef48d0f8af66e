"""The pages on compilation are true: their blocks run on the PyTorch engine, and the demo's compiled form really runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gt import small

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / n for n in ("compilation.md", "BATCHING_AND_COMPILATION.md", "design/replay.md")]


def run(*command: str, **more: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120", **more}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=85)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.default("GT_TRACE")  # they show its effect
@pytest.mark.parametrize("alone", [True, False], ids=["with variables", "without"])
def test_every_block_runs(alone: bool) -> None:
    """Blocks without variables of their own run in one process, as PyTorch takes longest to load; first the blocks that show
    the statistics of a worker. None sees another's names."""
    found = [code for page in PAGES for code in blocks(page) if "gt.debug.programs()" not in code]  # which has its own test
    chosen = [code for code in found if ("os.environ" in code) == alone]
    assert len(found) == 5 and chosen
    chosen.sort(key=lambda code: "get_worker_stats" not in code)
    engine = {"GT_BACKEND": "numpy"} if alone else {}  # it shows units, which Inductor compiles in tests/memory/test_units.py
    run("-c", "\n".join(f"exec({code!r}, {{'__name__': '__main__'}})" for code in chosen), **engine)


@pytest.mark.default("GT_TRACE")
def test_programs_are_shown_on_standard_error_with_the_lines_of_the_script() -> None:
    [code] = [code for page in PAGES for code in blocks(page) if "gt.debug.programs()" in code]
    done = run("-c", code, GT_DEBUG_PROGRAMS="1")
    assert re.search(r"gt-worker: as received\nprogram \d+\(a: float32\[4, 4\]\):\n", done.stderr), done.stderr
    assert re.search(r"    \w+ = tanh\(\w+\)  # float32\[4, 4\], frees \w+, <string>:5\n", done.stderr), done.stderr
    last = "written in place" if small.NATIVE is None else "small runs joined"
    assert f"gt-worker: {last}\n" in done.stderr and "as received\n" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((\S+?\.md)\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.slow
def test_the_demo_compiles_and_prints_it() -> None:
    done = run(str(ROOT / "examples" / "compile_demo.py"), GT_DEBUG_COMPILE="1", GT_CHECK_COMPILED="1")
    assert "compiled:" in done.stdout and "fallbacks: none" in done.stdout
    executions = re.search(r"compiled executions\D+(\d+)", done.stdout)
    assert executions and int(executions[1]) >= 30
    assert re.search(r"gt-worker: a trace of \d+ ops \(number \d+\): compiled in [\d.]+ s", done.stderr)


FIRST_CALLS = """
import time, gt
x, w = gt.randn(8, 8), gt.randn(8, 8)
while True:
    (((x @ w) * 0.5).tanh().exp().log() + 1.0).numpy()
    [worker] = gt.debug.get_worker_stats().values()
    done = worker["traces"]
    if done.get("compiled_calls") or done.get("fallbacks"): break
    time.sleep(0.2)
print(done["compilations"], done["compile_cache_hits"])
"""


@pytest.mark.slow
def test_a_second_run_finds_the_compiled_programs_of_the_first_on_disk(tmp_path: Path) -> None:
    compiled = []
    for _ in range(2):
        made, found = run("-c", FIRST_CALLS, GT_AUTO_COMPILE="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).stdout.split()
        compiled.append(float(made) - float(found))
    assert compiled[0] >= 1 and compiled[1] == 0
