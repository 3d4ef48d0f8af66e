"""Scripts as people write them for PyTorch, in scripts/: run as they stand, and with `torch` replaced by `gt`. Each leaves
its numbers in `result`, and both runs must leave the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def ported(text: str) -> str:
    """The edit of a user who ports a script: the imports name gt, the rest stays."""
    text = re.sub(r"^(from|import) torch(?=[. ])", r"\1 gt", text, flags=re.M)
    return re.sub(r"^import torch$", "import gt as torch", text, flags=re.M)


def plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach()
        return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def same(found: Any, want: Any, where: str) -> None:
    if isinstance(want, dict):
        assert list(found) == list(want), where
        for k in want:
            same(found[k], want[k], f"{where}[{k!r}]")
    elif isinstance(want, list):
        assert isinstance(found, list) and len(found) == len(want), where
        for i, (a, b) in enumerate(zip(found, want)):
            same(a, b, f"{where}[{i}]")
    elif isinstance(want, (np.ndarray, float)):
        a, b = np.asarray(found), np.asarray(want)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4, err_msg=where)
    else:
        assert (as_this_version(found) if isinstance(found, str) else found) == want, where


def as_this_version(text: str) -> str:
    """Older versions of PyTorch than 2.13 do not name the bias of a norm."""
    return re.sub(r"(affine=\w+), bias=\w+", r"\1", text) if torch.__version__ < "2.13" else text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_runs_with_torch_replaced_by_gt(path: Path) -> None:
    text = path.read_text()
    theirs: dict[str, Any] = {"__name__": path.stem}
    ours: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, path, "exec"), theirs)
    with gt.testing.cluster(1, engine="pytorch"):
        exec(compile(ported(text), path, "exec"), ours)
        same(plain(ours["result"]), plain(theirs["result"]), path.stem)


def test_a_script_is_moved_by_its_imports_alone() -> None:
    text = "import torch\nimport torch.nn as nn\nfrom torch import nn\nfrom torch.nn import functional as F\ntorch.zeros(2)\n"
    want = "import gt as torch\nimport gt.nn as nn\nfrom gt import nn\nfrom gt.nn import functional as F\ntorch.zeros(2)\n"
    assert ported(text) == want
