"""Writes docs/pytorch.md: `python -m tests.docs.pytorch_list`. Missing names are found by comparing both classes."""

from __future__ import annotations

import importlib
import re
import types
import warnings
from pathlib import Path
from typing import Any

import torch

import gt
from gt.missing_names import reason
from tests.ops.opinfo_exceptions import EXCEPTIONS, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"

# Reasons of missing names, by pattern; the first that fits.
REASONS = {
    "no processor computes with 16-bit complex numbers": r"^chalf$",
    "GT's tensors are dense": (
        r"sparse|coalesce|(row|col|crow|ccol)_indices|^(indices|values|smm|sspaddmm)$|dense|nested|padded"
    ),
    "GT has no quantized tensors": r"^q_|qscheme|quant(?!ile)|int_repr",
    "a value never changes on the workers and has no address or strides of its own": (
        r"stride|storage|data_ptr|^set_|is_set_to|resize|layout|dim_order|share|as_subclass|is_pinned|slice_inverse|"
        r"record_stream|unsafe_|module_load|^new$"
    ),
    "which device holds a tensor is the dispatcher's business": (
        r"^is_(cpu|cuda|ipu|maia|meta|mkldnn|mps|mtia|vulkan|xla|xpu|distributed|inference)$|^(ipu|mtia|xpu|get_device)$|mkldnn"
    ),
    "PyTorch itself has given these up": (
        r"^(eig|symeig|lstsq|solve|triangular_solve|volatile|reinforce|name|map_|map2_|apply_)$"
    ),
    "internal to PyTorch": r"^(output_nr|grad_dtype|hash_tensor|nonzero_static|index)$",
    "steps inside LAPACK's qr: use `linalg.qr`": r"^(geqrf|orgqr|ormqr)$",
    "rare, and not there yet": r"^(igamma|nextafter)",
}
READS = """
- `x[mask]`, `x[mask] = tensor` (not `x[mask] = number`), `masked_select`, `masked_scatter`
- `nonzero`, `argwhere`, `where(condition)` alone
- `unique`, `unique_consecutive`, `bincount`, `histc` without ends, `one_hot` without a number of classes
- `repeat_interleave` with repeats that are a tensor
- `ctc_loss` with targets one after another, if their lengths are a tensor
- and functions that give Python values: `item`, `tolist`, `numpy`, `bool(x)`, `equal`, `allclose`, printing
"""


def names() -> list[str]:
    return [n for n in dir(torch.Tensor) if not n.startswith("_")]


def lacking() -> list[str]:
    assert gt.zeros  # methods arrive with the functions
    return [n for n in names() if not hasattr(gt.Tensor, n)]


def grouped() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {why: [] for why in REASONS} | {"not there yet": []}
    for name in lacking():
        why = next((r for r, pattern in REASONS.items() if re.search(pattern, name)), "not there yet")
        found[why].append(name)
    return found


MODULES = [
    "torch", "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "optim.swa_utils", "linalg",
    "special", "fft", "utils.data", "distributions", "autograd", "autograd.functional", "func", "amp", "random", "cuda",
]  # fmt: skip
ELSEWHERE = {
    "typing",
    "collections",
    "functools",
    "collections.abc",
    "typing_extensions",
    "enum",
    "dataclasses",
    "abc",
    "contextlib",
}


def module_names(part: str) -> tuple[list[str], list[str]]:
    """The public names of a module of PyTorch's, and those of them that GT's lacks."""
    theirs, own = (root if part == "torch" else importlib.import_module(f"{root.__name__}.{part}") for root in (torch, gt))
    public = []
    for name in dir(theirs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value: Any = getattr(theirs, name, None)
        foreign = isinstance(value, types.ModuleType) or getattr(value, "__module__", "") in ELSEWHERE
        if not name.startswith("_") and not foreign:  # the modules that are there depend on earlier imports
            public.append(name)
    return public, [name for name in public if not hasattr(own, name)]


def of_modules() -> list[str]:
    lines = ["## Names of PyTorch's modules that GT lacks", "",
             "An AttributeError gives the reason, where there is one to give.", "",
             "| Module | Names | GT has |", "| --- | --- | --- |"]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for part in MODULES:
        public, lacking = module_names(part)
        lines.append(f"| `{'torch' if part == 'torch' else 'torch.' + part}` | {len(public)} | {len(public) - len(lacking)} |")
        for name in lacking:
            why = reason(part, name) or "internal to PyTorch, or nobody's yet"
            reasons.setdefault(why, []).append(name if part == "torch" else f"{part}.{name}")
    lines.append("")
    for why, found in sorted(reasons.items(), key=lambda item: item[0].startswith("internal")):
        lines += [f"**{why[0].upper()}{why[1:]}:**", ", ".join(f"`{n}`" for n in found), ""]
    return lines


FORMS = {
    "plain": "Results and gradients",
    "in_place": "Forms in place",
    "out": "`out=`",
    "refused": "Calls that PyTorch refuses",
    "dtypes": "Other dtypes",
}


def by_samples() -> list[str]:
    """The results on PyTorch's own samples, from the exceptions that the tests hold to."""
    wrong = {name.split(".")[0] for name in EXCEPTIONS["plain"]}
    lines = [
        "## By PyTorch's own samples",
        "",
        f"PyTorch's OpInfo has {NAMES} public names for floats. Called in PyTorch and in GT, `tests/ops/test_opinfo.py` finds",
        f"{NAMES - len(wrong)} of them equal in results, dtypes and gradients, on the PyTorch and the NumPy engine, alone and",
        "over 3 workers. `python tests/ops/opinfo_run.py` prints the comparison. What differs, and why:",
        "",
    ]
    for form, title in FORMS.items():
        reasons: dict[str, list[str]] = {}
        for name, why in EXCEPTIONS[form].items():
            reasons.setdefault(why, []).append(name)
        if not reasons:
            continue
        lines += [f"**{title}:**", ""]
        lines += [f"- {', '.join(f'`{n}`' for n in group)}: {why}" for why, group in reasons.items()]
        lines += [""]
    return lines


def text() -> str:
    have = len(names()) - len(lacking())
    lines = [
        "# GT and PyTorch",
        "",
        "A script that uses PyTorch's tensors runs with `import gt as torch` as far as this page goes. It is written by",
        "`python -m tests.docs.pytorch_list`, and a test fails when it no longer tells the truth.",
        "",
        "## Differences",
        "",
        "- Values on the workers never change, and yet views follow: a write into a tensor is seen by its base and",
        "  by all views of it. `docs/design/views.md` explains how, and where GT is more or less strict than PyTorch.",
        "- `numpy()` and `gt.from_numpy` copy: an array shares no memory with a tensor. A tensor that requires gradients gives",
        "  its numbers, too; PyTorch wants `detach()` first.",
        "- Slices may go backwards: `x[::-1]`; so may an array's for `gt.from_numpy`.",
        "- `view()` of a tensor whose elements do not lie row by row (`x.t().view(6)`) is a view with the values of `reshape`;",
        "  PyTorch raises. A list or an array may be written into a tensor (`x[0] = [1, 2]`); PyTorch takes tensors and",
        "  numbers only.",
        "- `param -= lr * param.grad` outside `no_grad` raises, as in PyTorch: a parameter is a leaf of the tape. Write it",
        "  inside `with gt.no_grad():`, or let an optimizer step; the error names both.",
        "- `x.transpose()` without axes reverses all of them, as NumPy and GT2's page have it; PyTorch has no such call. Of a",
        "  tensor of three axes write `x.transpose(-2, -1)` or `x.mT` to exchange the last two.",
        "- Wrong arguments of ops raise ValueError, TypeError or IndexError that are RuntimeErrors as well, so that",
        "  `except RuntimeError` of a script for PyTorch catches them.",
        "- Devices decide nothing: `gt.device`, `.to(device)`, `.cuda()` are taken and ignored, `gt.cuda.is_available()` is",
        "  False, and the dispatcher chooses among the workers. The device of every tensor is `gt.device('gt')`.",
        "- `gt.set_float32_matmul_precision` holds for products that are issued after it, on whatever worker they run; other",
        "  clients of that worker keep theirs. A program with products of less than the highest precision runs as a CUDA",
        "  graph, but is not compiled by Inductor. In the highest precision large float32 products on GPUs of compute",
        "  capability 9 are added up from bfloat16 pieces, as exactly as in float32 but for factors below 8e-34",
        "  ([replay](design/replay.md)).",
        "- `gt.autocast` has PyTorch's lists for CUDA, whatever the device type: softmax, norms, sums and losses are float32.",
        "- Shapes print as tuples, and `grad_fn` as the name of the op.",
        "- Checks of values do not wait. PyTorch refuses a negative deviation, a value outside of a distribution's support, or",
        "  weights of `multinomial` that are all 0, on the line itself. So does GT for Python numbers and for small tensors of",
        "  Python data or arrays; of others, the check is read along with the next value that the script reads, and that read",
        "  raises the same type of error and names the line of the check. `validate_args=True` of a distribution waits and",
        "  raises on its line, `validate_args=False` checks nothing; functions under `gt.compile` check nothing.",
        "- A matrix that is singular or not positive is found on a worker: `gt.linalg.LinAlgError`, PyTorch's name for it, is",
        "  raised where the result is read, not on the line of the op.",
        "- The step count in an optimizer's state is a Python number; PyTorch has a tensor.",
        "- The sparse gradient of `Embedding(sparse=True)` keeps the indices of `padding_idx`, with zeros; it is dense where",
        "  the table is no leaf or gradients of gradients are wanted. Clipping makes it dense, and so do the buffers of `SGD`",
        "  with momentum and the sums of `Adagrad`. `SparseAdam` takes dense gradients too.",
        "- `functional_call` with a name that the module lacks raises KeyError; PyTorch ignores it.",
        "- There is no forward mode: `jacfwd` goes backwards, and `vmap` is a loop.",
        "- The same seed gives the same random numbers on every engine and any number of workers, not those of PyTorch.",
        "- `gt.save` and `gt.load` write safetensors, never pickle, by the library that defines the format: one reader and its",
        "  checks for everybody. All tensors of a file are held in memory while it is written. A whole module is refused: save",
        "  its `state_dict()`.",
        "- Where values decide a shape, they are read, and the script waits for them:",
        *("  " + line for line in READS.strip().splitlines()),
        "",
        *by_samples(),
        "## Methods of torch.Tensor that GT lacks",
        "",
        f"GT's Tensor has {have} of the {len(names())} public names of `torch.Tensor` "
        f"(PyTorch {torch.__version__.split('+')[0]}).",
        "",
    ]
    for why, group in grouped().items():
        if group:
            lines += [f"**{why[0].upper()}{why[1:]}:**", ", ".join(f"`{n}`" for n in group), ""]
    return "\n".join([*lines, *of_modules()])


if __name__ == "__main__":
    PAGE.write_text(text())
