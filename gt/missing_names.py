"""Names that PyTorch has and GT lacks: the text of their AttributeError, which `docs/pytorch.md` lists too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

PLACED = "a script chooses no device: the dispatcher places ops, and reading a value waits for it"
RANKS = "a GT script is rank 0 of 1: the dispatcher moves tensors, and signals shard them (docs/sharding.md)"
OWN = "it works on PyTorch's own graphs, kernels or tensors"
DTYPES = "bool, uint8, int8 to int64, float16, bfloat16, float32, float64, complex64, complex128"

# The reason why a name is missing, by module and name; the first pattern that fits
REASONS = {
    r"^\w*\.?(complex32|chalf)$": "no processor computes with 16-bit complex numbers: use gt.complex64",
    r"hash_tensor$": "its result is of uint64, which GT has not: hash x.numpy().tobytes()",
    r"^torch\.(uint(16|32|64)|u?int[1-7]|bits|bit$|float[48]_)": f"tensors are of {DTYPES}",
    r"quant|\.q(u)?int|\.q_|per_(tensor|channel)_|qscheme|^torch\.ao$|\.(qat|intrinsic)$|int_repr|fbgemm": (
        "there are no quantized tensors"
    ),
    r"sparse_(bsr|bsc|csc|compressed)|SemiStructured|semi_structured|(bsr|bsc|csc)$": (
        "sparse matrices are gt.sparse_coo_tensor and gt.sparse_csr_tensor"
    ),
    r"^sparse\.|(smm|sspaddmm|saddmm|spmm)$|(indices|values)_copy$|resize_as_sparse_": (
        "sparse matrices are for products: gt.sparse.mm, gt.sparse.addmm; to_dense() for all else"
    ),
    r"Storage(Base)?$|storage|thread_safe_generator": "a tensor has no storage: its values lie on the workers",
    r"^autograd\.(profiler|kineto|Profiler)|\.profiler|record_function|benchmark|Benchmark": (
        "`gt trace`, `gt doctor` and gt.debug show where time goes"
    ),
    r"^torch\.hub$": "gt.hub would run code from elsewhere: load weights with gt.load into a module of your own",
    r"^utils\.tensorboard$": "import it by name, with the package tensorboard or tensorboardX: gt.utils.tensorboard",
    r"^nn\.utils\.prune$": "keep a mask as a buffer and write weight.mul_(mask) under no_grad() after each step",
    r"^nn\.utils\.parametrizations\.orthogonal$": "begin with nn.init.orthogonal_, and register_parametrization one's own",
    r"^autograd\.graph$": "saved tensors lie on the workers: gt.utils.checkpoint saves less",
    r"^autograd\.forward_ad$|fwAD$": "there is no forward mode: gt.func.jvp and jacfwd go backwards",
    r"^nn\.(Uninitialized\w+)$": "a lazy module has no parameters until its first call: has_uninitialized_params() tells",
    r"^nn\.CrossMapLRN2d$": "use gt.nn.LocalResponseNorm",
    r"^nn\.LinearCrossEntropy": "use gt.nn.functional.linear_cross_entropy",
    r"^nn\.grad$|^nn\.functional\.grad$": "gradients of ops come from backward() and gt.autograd.grad",
    r"^torch\.(lstm|gru|rnn_(tanh|relu))(_cell)?$": "use the modules gt.nn.LSTM, GRU, RNN and their cells",
    r"^torch\.(solve|eig|symeig|lstsq|matrix_rank)$": "PyTorch has given it up: use gt.linalg",
    r"^torch\.lobpcg$": "use gt.linalg.eigh",
    r"^(masked\.)(\w*[mM]asked\w*)$": "functions of gt.masked take a mask; there is no masked tensor",
    r"^utils\.data\.": "there are no data pipes: a Dataset and a DataLoader do",
    r"^(distributed|nn\.parallel|multiprocessing)\.": RANKS,
    r"^torch\.(Event|Stream)$|^(cuda|mps|xpu|mtia|cpu|accelerator|backends)\b|^torch\.(cpu|get_device_module)$": PLACED,
    r"^jit\.|^torch\.(fx|export|package|library|overrides|nested|compiler|futures|classes|ops|fork|wait)$": OWN,
    r"^torch\.(\w*Type|\w*Graph\w*|Script\w*|\w*Logger\w*|PyTorchFile\w+|\w*Context|Sym\w+|sym_\w+|Dispatch\w+)$": OWN,
}  # fmt: skip


def reason(module: str, name: str) -> str:
    """Why GT's `module` (without `gt.`; `torch` for gt itself) has no such name; empty if unknown."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, f"{module}.{name}")), "")


def error(module: str, name: str) -> AttributeError:
    known = reason(module.removeprefix("gt.") if module != "gt" else "torch", name)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {known}" if known else ""), name=name)


def of(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`."""

    def missing(name: str) -> Any:
        raise error(module, name)

    return missing
