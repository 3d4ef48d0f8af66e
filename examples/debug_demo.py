"""Looking inside: the tape, the workers, and the instruction log."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ops.log")
        os.environ["GT_INSTRUCTION_LOG"] = str(log)  # read by the server that the first op starts
        import gt

        a = gt.randn(10, 10, requires_grad=True)
        b = gt.randn(10, 10, requires_grad=True)
        loss = (a @ b + a).relu().sum()

        print("The ops that wait for backward():")
        gt.debug.print_tape()
        loss.backward()
        print("gradient of a:", a.grad[0, :3])
        print(f"After backward() the tape has {len(gt.debug.get_tape())} ops.")

        gt.debug.print_worker_stats()
        gt.disconnect()
        print("The last lines of the instruction log:")
        print("\n".join(log.read_text().splitlines()[-8:]))
        del os.environ["GT_INSTRUCTION_LOG"]


if __name__ == "__main__":
    main()
