"""ATen's functions by their names, each in the form that is called fastest: PyTorch's own binding where it has one, else
the operator's default overload. The bare `torch.ops.aten.NAME` goes through its overloads at each call: some 3 to 5 us on the
test machine, as long as many a small kernel takes."""

from __future__ import annotations

from typing import Any

import torch

OPTIONAL = ("index_put", "index_put_")  # whose bindings take no None among the places


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = getattr(torch._C._VariableFunctions, name, None) or getattr(torch._C._nn, name, None)
    if found is None or name in OPTIONAL:
        overloads = getattr(torch.ops.aten, name)
        found = overloads.default if "default" in overloads.overloads() else overloads
    globals()[name] = found  # the next time it is found without this function
    return found
