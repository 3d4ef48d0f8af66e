"""The parts of GT import one another in one direction, and only the shells use sockets, threads and clocks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "gt"
# A part imports only parts that stand above it. Those on one line never import one another.
ORDER = [
    ["garbage", "import_paths", "lazy_import", "missing_names", "parameters"],
    ["safe_path", "version", "accelerator", "jit", "multiprocessing", "onnx"],
    ["device", "errors", "ownership", "source_digest", "spec"],
    ["environment"],
    ["native_modules"],
    ["ops"],
    ["program"],
    ["small"],
    ["config"],
    ["backends"],
    ["tensor_ops"],
    ["tensor_ops_cpp", "tensor_ops_cuda", "tensor_ops_opencl"],
    ["transport"],
    ["launch"],
    ["clusters"],
    ["dispatcher", "worker", "client"],
    ["amp", "autograd", "data", "distributed", "fft", "files", "linalg", "masked", "optim", "random", "sparse", "special"],
    ["functional", "types"],
    ["compiler", "cuda", "func", "utils"],
    ["nn"],
    ["distributions"],
    ["persistent"],
    ["watch"],
    ["pools"],
    ["debug", "signal", "server", "scripts", "testing"],
    ["cli", "profiler"],
]
HEIGHT = {part: i for i, line in enumerate(ORDER) for part in line}
# Modules that only shells, `transport/`, `launch.py` and the entry points may import.
WORLD = {"asyncio", "multiprocessing", "sched", "select", "selectors", "signal", "socket", "subprocess", "time", "zmq"}
CORES = ["errors", "environment", "spec", "ops", "program", "config", "dispatcher", "worker", "client"]
# Threads are for shells, too. A client has locks, since the threads of a script share its session.
THREADS = {"threading", "_thread", "concurrent", "queue"}
THREADED = {
    "client/default.py": "one default session for all threads, and none of the parent's in a forked child",
    "client/replies.py": "a reader waits until another thread has received its answer",
    "client/scope.py": "each thread has a scope of its own",
    "client/session.py": "one batch at a time, whichever thread sends it",
    "client/signals.py": "each thread leaves the signals that it entered",
    "client/window.py": "acknowledgements come in whichever thread receives",
    "worker/collectives/process_group.py": "groups are built in a thread, which waits for peers and loads PyTorch",
    "worker/collectives/torch_transport.py": "torch.distributed waits for peers in a thread",
    "worker/engine/philox.py": "random numbers of a large tensor are made on all cores",
    "worker/engine/torch/chain_kernels.py": "kernels are compiled while the graph runs without them",
    "worker/engine/torch/inductor.py": "programs are compiled while they run as they are",
    "worker/recorder.py": "a thread reports the times that another recorded",
    "worker/second_thread.py": "short runs are executed while the first thread is inside a long kernel",
    "worker/state.py": "the stack of the first thread is told by another, as the first may be stuck",
    "worker/arrivals.py": "kernels may ask for messages in a thread, and sockets are the first one's",
}
SHELLS = ("serve.py", "groups.py", "__main__.py")  # groups.py waits for other workers
SHELLS += ("second_thread.py",)  # which gt/worker/serve.py starts
SHELLS += ("client_socket.py", "dispatcher_socket.py", "peer_sockets.py")  # the sockets that gt/worker/serve.py is made of


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module named in an import statement, those inside functions too, or in a LazyImport."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.update(f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "LazyImport":
            found.add(ast.literal_eval(node.args[0]))
    return found


def part_of(module: str) -> str:
    """`gt.client.session` belongs to the part `client`; names of the package itself to none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "gt" and len(parts) > 1 and parts[1] in HEIGHT else ""


def name_of(path: Path) -> str:
    return ".".join(("gt", *path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_part_imports_only_parts_above_it(path: Path) -> None:
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


def test_threads_are_known_only_where_there_is_a_reason() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in modules()
        if part_of(name_of(path)) in CORES and {m.split(".")[0] for m in imports(path)} & THREADS
    }
    assert found == THREADED.keys(), "threads belong to shells: a new one needs its reason here, and one that is gone goes"


def test_every_module_belongs_to_a_known_part() -> None:
    top = {ROOT / "__init__.py", ROOT / "__main__.py"}
    unknown = [str(path.relative_to(ROOT)) for path in modules() if path not in top and not part_of(name_of(path))]
    assert unknown == [], "give these a place in ORDER"
    assert sum(map(len, ORDER)) == len(HEIGHT), "a part stands twice in ORDER"


def test_the_rule_can_tell_a_wrong_import() -> None:
    assert part_of("gt.client.session") == "client" and part_of("gt.dispatcher.core") == "dispatcher"
    assert HEIGHT["client"] == HEIGHT["dispatcher"] == HEIGHT["worker"] and not HEIGHT["ops"] < HEIGHT["spec"]


def test_importing_the_package_loads_neither_zmq_nor_numpy_nor_torch() -> None:
    """`import gt` is quick: heavy parts load on their first use."""
    tops = {m.split(".")[0] for m in imports(ROOT / "__init__.py") | imports(ROOT / "spec.py")}
    assert not tops & {"zmq", "numpy", "torch", "msgspec", "yaml", "rich"}
