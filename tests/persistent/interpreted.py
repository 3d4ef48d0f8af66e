"""Run by test_triton.py in a process of its own, since Triton reads TRITON_INTERPRET when kernels are defined.

Takes a case as JSON and prints the tokens and the last logits of PersistentKernel's triton backend.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gt
from gt.persistent import choice
from tests.persistent.tiny import weights


def main(case: dict[str, Any]) -> None:
    choice.backends.registry().decode_reason = lambda name: None  # type: ignore[method-assign]  # the registry asks for a GPU, the interpreter needs none
    mend_index()
    if case.get("fault"):
        plant(*case["fault"])
    kernel = gt.PersistentKernel(backend="triton", model=(case["config"], weights(case["config"])), **case["options"])
    ids = [kernel.add_request(prompt) for prompt in case["prompts"]]
    kernel()
    kernel._executor.fill_pages(kernel.scheduler.pool.free, np.nan)
    kernel(steps=case["steps"] - 1)
    kernel.scheduler.check()
    json.dump([[kernel.tokens(id) for id in ids], kernel._executor.last_logits()[: len(ids)].tolist()], sys.stdout)


def mend_index() -> None:
    """Triton 3.6 makes an index of an array of one element by int(), which NumPy 2.4 refuses; later versions do as here."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


def plant(before: str, after: str) -> None:
    """Change the source of the kernels before it is read."""
    from gt.persistent import gpu

    file = Path(str(gpu.__file__)).parent / "triton_kernels.py"
    text = file.read_text()
    assert text.count(before) == 1, f"{text.count(before)} times {before!r}"
    changed = Path(sys.argv[2]) / "triton_kernels.py"
    changed.write_text(text.replace(before, after))
    gpu.__path__.insert(0, str(changed.parent))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
