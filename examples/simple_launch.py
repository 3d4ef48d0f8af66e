"""A server, two workers and a client started by hand, as on several hosts: the commands are printed as they are run."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import gt


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(stack: ExitStack, *command: str) -> None:
    print("$ python", *command, flush=True)
    process = subprocess.Popen([sys.executable, *command])
    stack.callback(process.wait)
    stack.callback(process.terminate)


def main() -> None:
    port = str(free_port())
    with ExitStack() as stack:
        launch(stack, "-m", "gt.server", "-p", port)
        for n in range(2):
            launch(stack, "-m", "gt.worker", "--host", "localhost", "-p", port, "--id", f"worker{n}")
        print(f">>> gt.connect('localhost:{port}')")
        gt.connect(f"localhost:{port}", timeout=20)
        stack.callback(gt.disconnect)

        a = gt.randn(500, 500)
        b = gt.randn(500, 500)
        print("mean of a @ b:", (a @ b).mean().item())

        deadline = time.monotonic() + 30
        while len(gt.debug.get_worker_stats()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        gt.debug.print_worker_stats()


if __name__ == "__main__":
    main()
