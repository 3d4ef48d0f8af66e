"""The environment variables, for processes that GT starts by itself and for those started by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import PATIENCE, ROOT, Process, Processes, until

from gt.environment import CLIENT, VARIABLES

WORK = """
import sys, gt
if len(sys.argv) > 1: gt.connect(sys.argv[1])
a = gt.ones(2, 2)
print((a @ a).sum().item())
"""
LINE = re.compile(r"\[TAPE \d+\.\d{3}s\] (RECV|WORKER_SEND|WORKER_RECV|SEND) *\| \S+ *\| \w+ *\| .+")
EVENT = re.compile(r"\[TAPE \d+\.\d{3}s\] (JOINED|WAITED|TRACED) *\| \S+ *\| \w+ *\| .+")
FAULTS = """
import numpy as np, gt
table, w = np.ones((64, 64), "float32"), gt.ones(64, 64)
for step in range(30):
    x = gt.tensor(table)
    y = ((x * 2.0 + 0.5).tanh() @ w + 0.5).relu()
    for _ in range(step if step > 10 and step % 3 == 0 else 0):
        y = y.sqrt()
    y.sum().item()
"""


def auto(processes: Processes, **environment: str) -> Process:
    """A script that starts everything by itself."""
    script = processes.script(WORK, **environment)
    assert script.ended() == 0, script.err
    assert script.out == "8.0\n"
    return script


def separate(processes: Processes, **environment: str) -> tuple[Process, Process, Process]:
    """A server, a worker and a client started by hand, with these variables where they are read."""
    quiet = {"GT_VERBOSE": "", **environment}
    environment = {k: v for k, v in environment.items() if CLIENT in VARIABLES[k].readers}
    server = processes.start("-m", "gt.server", "-p", str(port := _port()), **quiet)
    patience = ("--timeout", str(PATIENCE))  # the server may be long in starting on a busy machine
    worker = processes.start("-m", "gt.worker", "-p", str(port), *patience, **{"GT_BACKEND": "numpy", **quiet})
    from gt.transport.addresses import ipc_address, listens

    until(lambda: listens(ipc_address(str(port))), what="the server listens")
    client = processes.script(WORK, f"localhost:{port}", **environment)
    assert client.ended() == 0, client.err
    assert client.out == "8.0\n"
    return server, worker, client


def _port() -> int:
    from processes import free_port

    return free_port()


def test_without_any_nothing_is_printed(processes: Processes) -> None:
    assert auto(processes).err == ""
    assert [p.err + p.out for p in separate(processes)] == ["", "", "8.0\n"]


@pytest.mark.parametrize("start", [auto, separate])
def test_the_instruction_log_has_every_op_on_its_way(processes: Processes, tmp_path: Path, start: object) -> None:
    log = tmp_path / "ops.log"
    start(processes, GT_INSTRUCTION_LOG="ops.log")  # type: ignore[operator]
    until(lambda: log.exists() and log.read_text().count("] SEND ") > 3, 5, "a written log")
    lines = log.read_text().splitlines()
    assert all(LINE.fullmatch(line) or EVENT.fullmatch(line) for line in lines), lines
    for op, sort in (("full", "CreateOp"), ("matmul", "BinaryOp"), ("sum", "UnaryOp")):
        found = [line for line in lines if f"op={op} " in line]
        assert [line.split()[2] for line in found] == ["RECV", "WORKER_SEND"] and sort in found[0], "on its way once"
    times = [float(line[6 : line.index("s]")]) for line in lines]
    assert times == sorted(times)
    if start is auto:
        assert any("| auto_worker     | WorkerOp  | success=True" in line for line in lines)


STOPPED = """
import os, signal, subprocess
import gt
from gt.client import default
print((gt.ones(2, 4) @ gt.ones(4, 1)).sum().item())
last = gt.ones(3) * 2
server = default._default.children.servers[0].pid
os.kill(server, signal.SIGSTOP)
subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {server}"])
"""


def test_a_server_that_stands_still_when_the_script_ends_completes_its_log(processes: Processes, tmp_path: Path) -> None:
    script = processes.script(STOPPED, GT_INSTRUCTION_LOG="ops.log", GT_ONE_PROCESS="1")
    assert script.ended() == 0 and script.out == "8.0\n" and script.err == "", script.err
    lines = (tmp_path / "ops.log").read_text().splitlines()
    assert any("op=mul " in line for line in lines), lines


@pytest.mark.default("GT_TRACE")  # one of the faults is a trace that breaks
def test_the_doctor_names_the_faults_of_a_script_in_its_instruction_log(processes: Processes, tmp_path: Path) -> None:
    script = processes.script(FAULTS, GT_INSTRUCTION_LOG="ops.log")
    assert script.ended() == 0 and script.err == "", script.err
    doctor = processes.start("-m", "gt", "doctor", str(tmp_path / "ops.log"))
    assert doctor.ended() == 0, doctor.err
    for line, fault in (
        (5, "the same array of 16.0 KB was sent 30 times"),
        (8, "a trace broke 6 times: diverged"),
        (9, "30 reads drained the queue"),
    ):
        assert re.search(rf"^- <string>:{line}: {fault}", doctor.out, re.MULTILINE), doctor.out


def test_the_instruction_log_shows_where_a_program_hangs(processes: Processes, tmp_path: Path) -> None:
    """An instruction is logged before it is carried out."""
    _, port = processes.server(GT_INSTRUCTION_LOG="ops.log")
    script = processes.script(
        "import sys, gt; gt.connect(sys.argv[1]); print('up'); gt.ones(2).exp().numpy()", f"localhost:{port}"
    )
    script.wait_for("up")
    log = tmp_path / "ops.log"
    worker = processes.worker(port)
    worker.popen.send_signal(19)
    until(lambda: log.exists() and "op=exp" in log.read_text() or script.popen.poll() is not None, 10, "the op that hangs")
    worker.popen.send_signal(18)
    assert script.ended() == 0


def test_the_instruction_log_names_an_op_that_does_not_end(processes: Processes, tmp_path: Path) -> None:
    _, port = processes.server(GT_INSTRUCTION_LOG="ops.log")
    processes.worker(port)
    long = "import sys, gt; gt.connect(sys.argv[1]); x = gt.ones(4000, 4000, dtype=gt.int64); (x.abs() @ x).numpy()"
    script = processes.script(long, f"localhost:{port}")  # (products of integers are not BLAS': it takes a minute)
    log = tmp_path / "ops.log"
    until(lambda: "STALLED" in log.read_text() or script.popen.poll() is not None, 10, "the op that does not end")
    [line] = [line for line in log.read_text().splitlines() if "STALLED" in line]
    assert line == log.read_text().splitlines()[-1]
    assert re.search(r"STALLED +\| \S+ +\| WorkerOp +\| op=matmul result=\S+ seconds=\d+\.\d$", line), line


def test_verbose_prints_addresses_arrivals_and_departures(processes: Processes) -> None:
    err = auto(processes, GT_VERBOSE="1").err
    assert "gt-server: listening at ipc://" in err and "gt-server: client " in err
    assert re.search(r"gt-server: worker auto_worker joined with index 0: numpy on cpu", err)
    assert re.search(r"gt-worker: auto_worker is worker 0: numpy on cpu", err)
    server, worker, client = separate(processes, GT_VERBOSE="1")
    until(lambda: " left" in server.err, 5, "the client's leave")
    assert "listening at" in server.err and "joined with index 0" in server.err and "is worker 0" in worker.err
    assert client.err == ""


DEBUG = {
    "GT_DEBUG_CLIENT": (2, r"gt -> Batch .*matmul"),
    "GT_DEBUG_DISPATCHER": (0, r"\[TAPE .*\] RECV .*op=matmul"),
    "GT_DEBUG_WORKER": (1, r"gt-worker <- Run .*matmul"),
}


@pytest.mark.parametrize("variable", DEBUG)
def test_each_part_shows_its_messages_on_request(processes: Processes, variable: str) -> None:
    who, pattern = DEBUG[variable]
    assert re.search(pattern, auto(processes, **{variable: "1"}).err)
    parts = separate(processes, **{variable: "1"})
    until(lambda: re.search(pattern, parts[who].err), 5, pattern)
    for i, part in enumerate(parts):
        assert (part.err == "") == (i != who)


def test_a_key_is_never_shown(processes: Processes) -> None:
    shown = dict.fromkeys(("GT_VERBOSE", *DEBUG), "1")
    parts = separate(processes, GT_KEY="a very secret key", **shown)
    assert all("very secret" not in p.err + p.out for p in parts) and parts[0].err


OFF = ["GT_VERBOSE", "GT_DEBUG_COMPILE", "GT_DEBUG_PROGRAMS", *DEBUG]


@pytest.mark.parametrize("no", ["0", "false", "no"])
def test_a_variable_that_is_off_shows_nothing(processes: Processes, no: str) -> None:
    assert auto(processes, **dict.fromkeys(OFF, no)).err == ""


def test_a_value_that_cannot_be_used_is_an_error_wherever_it_is_read(processes: Processes) -> None:
    script = processes.script("import gt; gt.ones(1)", GT_VERBOSE="maybe")
    assert script.ended() != 0 and "GT_VERBOSE='maybe': expected one of 0, 1, true, false, yes, no" in script.err
    for module in ("gt.server", "gt.worker"):
        part = processes.start("-m", module, "-p", str(_port()), GT_VERBOSE="maybe")
        assert part.ended() == 1 and "GT_VERBOSE='maybe': expected" in part.err and "Traceback" not in part.err


def test_an_unknown_variable_is_warned_of_once_with_the_nearest_name(processes: Processes) -> None:
    script = auto(processes, GT_VERBSOE="1")
    assert script.err.count("GT knows no environment variable GT_VERBSOE: did you mean GT_VERBOSE?") == 1
    server, _ = processes.server(GT_BACKND="numpy")
    assert "gt-server: GT knows no environment variable GT_BACKND: did you mean GT_BACKEND?" in server.err


def test_a_client_is_warned_of_variables_that_only_servers_and_workers_read(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    client = processes.script(WORK, f"localhost:{port}", GT_INSTRUCTION_LOG="here.log", GT_TRACE="1")
    assert client.ended() == 0 and client.out == "8.0\n"
    assert f"GT_INSTRUCTION_LOG is set at this client, which connects to localhost:{port}" in client.err
    assert "set it where they are started" in client.err and "GT_TRACE" not in client.err


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_the_backend_is_chosen_by_variable(processes: Processes, backend: str) -> None:
    show = "import gt; gt.ones(1).numpy(); print([w['engine'] for w in gt.debug.get_worker_stats().values()])"
    assert processes.script(show, GT_BACKEND=backend).wait_for("[").out == f"['{backend}']\n"


def test_the_default_backend_is_pytorch_where_it_is_installed(processes: Processes) -> None:
    show = "import gt; gt.ones(1).numpy(); print([w['engine'] for w in gt.debug.get_worker_stats().values()])"
    assert processes.script(show, GT_BACKEND="").wait_for("[").out == "['pytorch']\n"


def test_a_wrong_backend_is_an_error_not_a_hang(processes: Processes) -> None:
    script = processes.script("import gt; print(gt.ones(1).numpy())", GT_BACKEND="torhc")
    assert script.ended(20) != 0
    assert "no backend 'torhc'" in script.err


def test_the_key_of_a_server_is_read_by_all_three(processes: Processes) -> None:
    separate(processes, GT_KEY="a shared secret key")


FIRST = """
import sys, importlib, pathlib
root = pathlib.Path(sys.argv[1]) / "gt"
for path in sorted(path for path in root.rglob("*.py") if "from gt import" in path.read_text()):
    module = ".".join(("gt", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    if not module.endswith("__main__"):
        for name in [n for n in sys.modules if n.split(".")[0] == "gt"]:
            del sys.modules[name]
        importlib.import_module(module)
        print(module, flush=True)
"""


@pytest.mark.slow
def test_any_part_can_be_imported_first(processes: Processes) -> None:
    script = processes.start("-c", FIRST, str(ROOT))
    assert script.ended(120) == 0, script.err
    assert {"gt.client.session", "gt.worker.serve"} <= set(script.out.split())
