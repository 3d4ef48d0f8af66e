"""Scripts that compute by Triton's interpreter, each in a process of its own: Triton reads TRITON_INTERPRET when it is given a
kernel."""

from __future__ import annotations

import os
import subprocess
import sys


def assert_prints_right(script: str, *arguments: str) -> None:
    """Such a script compares its results and, if all are right, prints so as its last statement."""
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "right", ran.stderr[-2000:]
