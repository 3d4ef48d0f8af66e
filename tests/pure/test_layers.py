"""The parts of GT import one another in one direction, and only the shells know sockets, threads and clocks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "gt"
# A part imports only parts that stand above it. Those on one line never import one another.
ORDER = [
    ["safe_path"],
    ["device", "errors", "spec"],
    ["environment"],
    ["ops"],
    ["program"],
    ["tensor_ops"],
    ["config"],
    ["transport"],
    ["launch"],
    ["backends"],
    ["dispatcher", "worker", "client"],
    ["amp", "autograd", "data", "distributed", "fft", "files", "linalg", "masked", "optim", "sparse", "special"],
    ["cuda", "func", "utils"],
    ["nn"],
    ["distributions"],
    ["persistent"],
    ["watch"],
    ["debug", "signal", "server", "scripts", "testing"],
    ["cli"],
]
HEIGHT = {part: i for i, line in enumerate(ORDER) for part in line}
# What only shells, `transport/`, `launch.py` and the entry points may know.
WORLD = {"asyncio", "multiprocessing", "sched", "select", "selectors", "signal", "socket", "subprocess", "time", "zmq"}
CORES = ["errors", "environment", "spec", "ops", "program", "config", "dispatcher", "worker", "client"]
SHELLS = ("serve.py", "groups.py", "__main__.py")  # groups.py waits for other workers


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module named in an import statement, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.update(f"{node.module}.{a.name}" for a in node.names)
    return found


def part_of(module: str) -> str:
    """`gt.client.session` belongs to the part `client`; names of the package itself to none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "gt" and len(parts) > 1 and parts[1] in HEIGHT else ""


def name_of(path: Path) -> str:
    return ".".join(("gt", *path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_part_imports_only_what_stands_above_it(path: Path) -> None:
    own = part_of(name_of(path))
    if not own:
        pytest.skip("a name at the top of the package")
    for module in imports(path):
        other = part_of(module)
        if other and other != own:
            assert HEIGHT[other] < HEIGHT[own], f"{own} imports {module}"


@pytest.mark.parametrize("path", [p for p in modules() if part_of(name_of(p)) in CORES], ids=lambda p: str(p.relative_to(ROOT)))
def test_only_shells_know_sockets_processes_and_clocks(path: Path) -> None:
    if path.name not in SHELLS:
        assert not {m.split(".")[0] for m in imports(path)} & WORLD


def test_every_module_belongs_to_a_known_part_or_is_a_thin_name_at_the_top() -> None:
    for path in modules():
        if not part_of(name_of(path)):
            assert path.parent == ROOT, f"{path.parent.name} is not among the parts"
            if path.name not in ("__init__.py", "__main__.py"):
                assert len(path.read_text().splitlines()) <= 60, f"{path.name} is not thin: give it a part"


def test_the_rule_can_tell_a_wrong_import() -> None:
    assert part_of("gt.client.session") == "client" and part_of("gt.dispatcher.core") == "dispatcher"
    assert HEIGHT["client"] == HEIGHT["dispatcher"] == HEIGHT["worker"] and not HEIGHT["ops"] < HEIGHT["spec"]


def test_importing_the_package_loads_neither_zmq_nor_numpy_nor_torch() -> None:
    """`import gt` is quick: heavy parts load on their first use."""
    tops = {m.split(".")[0] for m in imports(ROOT / "__init__.py") | imports(ROOT / "spec.py")}
    assert not tops & {"zmq", "numpy", "torch", "msgspec", "yaml", "rich"}
