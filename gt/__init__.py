"""GT: eager tensors on a shared pool of devices. Public names, nothing else; each part loads on its first use."""

from __future__ import annotations

from gt import safe_path as _safe_path  # noqa: F401 (before all else that is imported)

# isort: split
import importlib
import math
import re
from typing import Any

from gt import environment  # noqa: F401 (here, since parts that load it later would ask __getattr__ first)
from gt.device import Device as device
from gt.spec import DType as dtype
from gt.spec import (
    Size,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
)
from gt.spec import bool_ as bool  # noqa: A001

__version__ = "0.1.0"
inf, nan, pi, e, newaxis = math.inf, math.nan, math.pi, math.e, None
strided, contiguous_format, preserve_format, channels_last = "strided", "contiguous", "preserve", "channels_last"
channels_last_3d = "channels_last_3d"
sparse_coo, sparse_csr = "sparse_coo", "sparse_csr"
double, half, long, short, float = float64, float16, int64, int16, float32  # noqa: A001
int = int32  # noqa: A001
cfloat, cdouble = complex64, complex128

_FROM = {
    "gt.client.autograd": ["Tensor"],
    "gt.client.compile": ["compile"],
    "gt.client.default": ["connect", "disconnect", "gpu_workers", "is_connected"],
    "gt.client.signals": ["load_config", "register_config", "get_config"],
    "gt.config": ["ShardConfig", "SignalConfig"],
    "gt.client.grad_mode": ["no_grad", "enable_grad", "inference_mode", "set_grad_enabled"],
    "gt.client.scope": ["is_grad_enabled"],
    "gt.amp": ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"],
    "gt.errors": ["OutOfMemoryError"],
    "gt.distributions.draws": ["binomial", "poisson"],
    "gt.func": ["vmap"],
    "gt.files": ["load", "save"],
    "gt.backends": [
        "get_available_backends",
        "is_backend_available",
        "get_default_backend",
        "set_default_backend",
        "get_backend_info",
        "list_backends",
        "register_backend",
    ],
    "gt.pools.pool": ["pool"],
    "gt.persistent": ["PersistentKernel", "pages_that_fit"],
    "gt.nn.functional": [
        "adaptive_avg_pool1d",
        "adaptive_max_pool1d",
        "alpha_dropout",
        "avg_pool1d",
        "batch_norm",
        "bilinear",
        "binary_cross_entropy_with_logits",
        "celu",
        "channel_shuffle",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "cosine_embedding_loss",
        "cosine_similarity",
        "ctc_loss",
        "dropout",
        "embedding",
        "embedding_bag",
        "feature_alpha_dropout",
        "gelu",
        "grid_sampler",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "group_norm",
        "hinge_embedding_loss",
        "instance_norm",
        "kl_div",
        "layer_norm",
        "margin_ranking_loss",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "native_batch_norm",
        "native_group_norm",
        "native_layer_norm",
        "pairwise_distance",
        "pixel_shuffle",
        "pixel_unshuffle",
        "poisson_nll_loss",
        "rms_norm",
        "rrelu",
        "selu",
        "threshold",
        "triplet_margin_loss",
    ],
}
_PARTS = [
    "accelerator",
    "amp",
    "autograd",
    "backends",
    "cuda",
    "data",
    "debug",
    "distributed",
    "distributions",
    "errors",
    "fft",
    "func",
    "jit",
    "linalg",
    "masked",
    "multiprocessing",
    "nn",
    "onnx",
    "optim",
    "persistent",
    "random",
    "signal",
    "sparse",
    "special",
    "tensor_ops",
    "tensor_ops_cpp",
    "tensor_ops_cuda",
    "tensor_ops_opencl",
    "testing",
    "utils",
    "version",
]
_SAME = {"mps": "gt.cuda", "mtia": "gt.cuda", "xpu": "gt.cuda"}  # what scripts ask of other devices
# Why there is no such name, by what it looks like
_LACKING = {
    r"complex32|chalf": "no processor computes with 16-bit complex numbers: use gt.complex64",
    r"hash_tensor": "its result is of uint64, which GT has not: hash x.numpy().tobytes()",
    r"uint(16|32|64)|u?int[1-7]|bits|float[48]_": "tensors are of " + ", ".join(
        ("bool", "uint8", "int8 to int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")),
    r"quant|q(u)?int|per_(tensor|channel)_|qscheme|^ao$": "there are no quantized tensors",
    r"sparse_(bsr|bsc|csc|compressed)": "sparse matrices are gt.sparse_coo_tensor and gt.sparse_csr_tensor",
    r"Storage$|^storage$": "a tensor has no storage: its values lie on the workers",
    r"^(Event|Stream)$": "a script chooses no device: the dispatcher places ops, and reading a value waits for it",
    r"^profiler$": "`gt trace`, `gt doctor` and gt.debug show where time goes",
    r"^hub$": "gt.hub would run code from elsewhere: load weights with gt.load into a module of your own",
    r"^(fx|export|package|library|overrides|nested|compiler|futures)$": "it works on PyTorch's own graphs and tensors",
}  # fmt: skip
_MODULES = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "Size",
    "device",
    "dtype",
    "promote_types",
    "bfloat16",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
]
__all__ += ["bool", "double", "half", "long", "short", "float", "int", "cfloat", "cdouble", *_MODULES, *_PARTS]
__all__ += ["inf", "nan", "pi", "e", "newaxis", "strided", "contiguous_format", "preserve_format", "channels_last"]


def __getattr__(name: str) -> Any:
    if name in _PARTS or name in _SAME:
        value = importlib.import_module(_SAME.get(name) or f"gt.{name}")
    elif name in _MODULES:
        importlib.import_module("gt.client.functions")
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'gt' has no attribute {name!r}")
    else:
        functions = importlib.import_module("gt.client.functions").FUNCTIONS
        if name not in functions:
            why = next((f": {reason}" for pattern, reason in _LACKING.items() if re.search(pattern, name)), "")
            raise AttributeError(f"module 'gt' has no attribute {name!r}{why}")
        value = functions[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    functions = importlib.import_module("gt.client.functions").FUNCTIONS
    return sorted({*globals(), *__all__, *functions})
