"""`python tools/stubs.py`: writes gt/__init__.pyi, from which editors and type checkers know `gt` and the methods of Tensor.

Functions come from the op table and from gt/client/functions as they are when GT runs, so the file is never edited by hand.
Annotations that name public types are kept; others become Any."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["GT_NATIVE"] = "0"  # functions written in C do not say their parameters

import gt
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS

PATH = Path(gt.__file__).with_suffix(".pyi")
# Names that annotations may use, as the stub has them: `gt.int` and its like are dtypes, so Python's own are named otherwise.
KNOWN = {"Any": "Any", "None": "None", "Tensor": "Tensor", "Size": "Size", "DType": "dtype", "Callable": "Callable"}
KNOWN |= {name: f"_{name}" for name in ("int", "float", "bool", "str", "tuple", "list", "complex", "dict", "object")}
HEAD = '''"""Types of gt for editors and type checkers: written by `make stubs` from the op table and gt/client/functions."""

# ruff: noqa
# mypy: disable-error-code="override,misc"
from builtins import bool as _bool
from builtins import complex as _complex
from builtins import dict as _dict
from builtins import float as _float
from builtins import int as _int
from builtins import list as _list
from builtins import object as _object
from builtins import str as _str
from builtins import tuple as _tuple
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor as _Variable
from gt.device import Device as device
from gt.spec import DType as dtype
from gt.spec import Size as Size
from gt.spec import promote_types as promote_types
'''


def annotation(found: Any) -> str:
    """An annotation as the stub can say it, or Any."""
    if found is inspect.Signature.empty or not isinstance(found, str):
        return "Any"
    tree = ast.parse(found, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in KNOWN:
                return "Any"
            node.id = KNOWN[node.id]
        elif (
            isinstance(node, ast.Attribute)
            or isinstance(node, ast.Constant)
            and node.value is not None
            and node.value is not ...
        ):
            return "Any"
    return ast.unparse(tree)


def parameters(signature: inspect.Signature, bound: bool) -> str:
    """The parameters as they are written; of a method, the first is the tensor."""
    written: list[str] = []
    found = list(signature.parameters.values())
    if bound and found and found[0].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        written, found = ["self"], found[1:]
    elif bound:
        written = ["self"]
    for p in found:
        if p.kind is p.KEYWORD_ONLY and not any(w.startswith("*") for w in written):
            written.append("*")
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        written.append(f"{stars}{p.name}: {annotation(p.annotation)}{' = ...' if p.default is not p.empty else ''}")
    return ", ".join(written)


def definition(name: str, function: Callable, indent: str = "") -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, without a signature
        return f"{indent}def {name}({'self, ' if indent else ''}*args: Any, **kwargs: Any) -> Any: ..."
    operator = indent and getattr(function, "__name__", "") == "<lambda>"  # operators that operators.py writes in one line
    returns = "Tensor" if operator else annotation(signature.return_annotation)
    return f"{indent}def {name}({parameters(signature, bool(indent))}) -> {returns}: ..."


def methods() -> Iterator[str]:
    fields = set(Tensor.__struct_fields__)
    for name, found in sorted(vars(Tensor).items()):
        if not name.isidentifier() or name in fields or name.startswith("_") and not name.endswith("__") or name in SKIPPED:
            continue
        if isinstance(found, property):
            returns = annotation(getattr(found.fget, "__annotations__", {}).get("return", inspect.Signature.empty))
            yield f"    @property\n    def {name}(self) -> {returns}: ..."
            if found.fset:
                yield f"    @{name}.setter\n    def {name}(self, value: Any) -> None: ..."
        elif callable(found) and not isinstance(found, type):
            yield definition(name, found, "    ")


SKIPPED = set(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__"} | {
    "__copy__",
    "__replace__",
}


def stub() -> str:
    """The whole file."""
    lines = [HEAD]
    dtypes = sorted(name for name in vars(gt) if type(getattr(gt, name)) is gt.dtype and not name.startswith("_"))
    lines += [f"{name}: dtype" for name in dtypes]
    lines += ["inf: _float", "nan: _float", "pi: _float", "e: _float", "newaxis: None", "__version__: _str"]
    lines += [
        f"{n}: _str" for n in ("strided", "contiguous_format", "preserve_format", "channels_last", "sparse_coo", "sparse_csr")
    ]
    lines += ["", *(f"from . import {part} as {part}" for part in gt._PARTS)]
    places = {name: module for name, module in gt._MODULES.items() if name != "Tensor"}
    lines += [f"from {module} import {name} as {name}" for name, module in sorted(places.items())]
    lines += ["", "class Tensor(_Variable):", *methods(), ""]
    taken = {*places, *gt._PARTS, *dtypes, "Tensor", "Size", "device", "dtype", "promote_types"}
    lines += [definition(name, f) for name, f in sorted(FUNCTIONS.items()) if name.isidentifier() and name not in taken]
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        return int(PATH.read_text() != stub())
    PATH.write_text(stub())
    return 0


if __name__ == "__main__":
    sys.exit(main())
