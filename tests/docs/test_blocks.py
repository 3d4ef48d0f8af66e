"""Every Python block that users read runs, every example runs, and the doctests of public functions hold."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gt

ROOT = Path(__file__).parents[2]
# Pages with a test of their own, which knows their blocks' needs; for ON_PYTORCH (test_compilation.py) that of the Python.
ELSEWHERE = {"docs/backends.md", "docs/pytorch.md", "docs/sharding.md", "docs/tensor_ops.md", "docs/worker-backends.md"}
ON_PYTORCH = {"docs/compilation.md", "docs/BATCHING_AND_COMPILATION.md", "docs/design/replay.md"}
# Pages whose blocks continue one another: they run as one program.
WHOLE = ("docs/tutorial.md", "docs/autograd.md", "docs/tuning.md", "examples/README_SIGNALS.md")
REFERENCE = ROOT / "docs" / "reference"  # written by `make docs`: signatures, and examples that test_site.py runs
PAGES = [p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
         if str(p.relative_to(ROOT)) not in ELSEWHERE and p.parent != REFERENCE]  # fmt: skip


def blocks(language: str) -> list:
    found = []
    for page in sorted(PAGES):
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.S | re.M):
            line = text[: match.start()].count("\n") + 1
            name = str(page.relative_to(ROOT))
            if language != "python" or name not in ON_PYTORCH and name not in WHOLE:
                found.append(pytest.param(match[1], id=f"{name}:{line}"))
    return found


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "GT_BACKEND": "numpy", "COLUMNS": "100", **more}


def run(*command: str, cwd: Path = ROOT, **more: str) -> str:
    done = attempt(*command, cwd=cwd, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def attempt(*command: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(**more)
    return subprocess.run([sys.executable, *command], env=env, cwd=cwd, capture_output=True, text=True, timeout=80)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Where the server is that a page takes to be at port 12345."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    command = [sys.executable, "-m", "gt.server", "-p", port, "--workers", "2", "--backend", "numpy"]
    process = subprocess.Popen(command, env=environment())
    yield port
    process.terminate()
    process.wait(10)


def write_configurations(page: Path, folder: Path) -> None:
    """The YAML of a page that begins with a file's name, such as `# config.yaml`, as that file."""
    for name, text in re.findall(r"^```yaml\n(# (?:[\w.]+\.yaml)\n)(.*?)^```", page.read_text(), re.S | re.M):
        (folder / name[2:].strip()).write_text(text)


@pytest.mark.parametrize("code", blocks("python"))
def test_every_python_block_runs(code: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "12345" in code:
        code = code.replace("12345", request.getfixturevalue("server"))
    if "config.yaml" in code:
        write_configurations(ROOT / "README.md", tmp_path)
    run("-c", code, cwd=tmp_path)


@pytest.mark.parametrize("name", WHOLE)
def test_the_blocks_of_a_page_run_one_after_the_other(name: str, tmp_path: Path) -> None:
    write_configurations(ROOT / name, tmp_path)
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.S | re.M)
    assert len(found) >= 2
    run("-c", "\n".join(found), cwd=tmp_path, GT_COLLECTIVES="mail")


def test_there_are_blocks_to_run() -> None:
    assert len(blocks("python")) >= 4 and len(blocks("bash")) >= 3


MENTIONED = re.compile(r"`((?:gt|tests|examples|benchmarks|docs)/[\w/.]+?)`|\]\(([\w/.]+\.md|[\w/]+/)\)")


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda p: str(p.relative_to(ROOT)))
def test_names_that_a_page_mentions_exist(page: Path) -> None:
    for code, link in MENTIONED.findall(page.read_text()):
        assert (ROOT / code).exists() if code else (page.parent / link).exists(), f"{page.name} mentions {code or link}"


def test_the_demo_shows_real_results() -> None:
    done = attempt("examples/demo.py")
    out = done.stdout + done.stderr  # on which the progress bar is
    assert done.returncode == 0, out
    for word in ("A product", "tensor([[", "gradient tensor([2., 4., 6.])", "400/400", "Workers", "numpy", "matmul"):
        assert word in out, out
    assert float(re.search(r"told right: ([\d.]+)%", out)[1]) > 90  # type: ignore[index]


def test_the_launch_by_hand_works() -> None:
    out = run("examples/simple_launch.py")
    assert "python -m gt.server -p" in out and "mean of a @ b: " in out and "worker0" in out and "worker1" in out


def test_the_debug_demo_shows_the_tape_the_workers_and_the_log() -> None:
    out = run("examples/debug_demo.py")
    for word in ("Tape: 4 ops", "matmul", "the tape has 0 ops", "Workers", "[TAPE ", "| success=True"):
        assert word in out, out


def test_the_command_prints_its_version_and_its_commands() -> None:
    assert run("-m", "gt", "--version") == f"gt {gt.__version__}\n"
    usage = run("-m", "gt", "--help")
    assert all(command in usage for command in ("server", "worker", "stats"))


def test_the_command_shows_the_workers_of_a_server(server: str) -> None:
    import json

    table = run("-m", "gt", "stats", f"localhost:{server}")
    assert "Workers" in table and "numpy" in table
    stats = json.loads(run("-m", "gt", "stats", f"localhost:{server}", "--json"))
    assert stats["workers"] and stats["dispatcher"]["clients"] == 1


def test_the_command_prints_a_failure_without_a_traceback() -> None:
    done = attempt("-m", "gt", "stats", "localhost:1")
    assert done.returncode == 1 and "no dispatcher answered" in done.stderr and "Traceback" not in done.stderr


def test_the_command_ends_quietly_where_nobody_reads_on() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        command = [sys.executable, "-m", "gt", "doctor", "--host"]
        done = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == ""


def documented() -> Iterator[doctest.DocTest]:
    """Doctests of the modules users call into."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for package in ("gt.client.functions", "gt.nn", "gt.optim", "gt"):
        module = importlib.import_module(package)
        names = [package]
        if package != "gt":
            names += [m.name for m in pkgutil.walk_packages(module.__path__, package + ".")]
        else:
            names += ["gt.debug", "gt.testing"]
        for name in names:
            made = importlib.import_module(name)
            for test in finder.find(made, name, globs={"gt": gt}):
                if test.examples:
                    yield test


SHOW_TRACES = {"gt.debug.programs": pytest.mark.default("GT_TRACE")}
EXAMPLES = {t.name: pytest.param(t, id=t.name, marks=SHOW_TRACES.get(t.name, ())) for t in documented()}


@pytest.mark.parametrize("test", EXAMPLES.values())
def test_the_examples_of_docstrings_hold(test: doctest.DocTest) -> None:
    out: list[str] = []
    with gt.testing.cluster():
        failures, tried = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(
            test, out=out.append, clear_globs=True
        )
    assert tried and not failures, "".join(out)
