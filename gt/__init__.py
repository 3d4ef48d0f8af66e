"""GT: eager tensors on a shared pool of devices. Public names, nothing else; each part loads on its first use."""

from __future__ import annotations

from gt import safe_path as _safe_path  # noqa: F401 (before all else that is imported)

# isort: split
import importlib
import math
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
    "gt.errors": ["OutOfMemory", "OutOfMemoryError"],
    "gt.distributions.draws": ["binomial", "poisson"],
    "gt.func": ["vmap"],
    "gt.files": ["load", "save"],
    "gt.autograd.anomaly": ["is_anomaly_enabled"],
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
    "gt.watch.progress": ["progress"],
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
        "celu_",
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
        "selu_",
        "threshold",
        "threshold_",
        "triplet_margin_loss",
    ],
}
_PARTS = [
    "accelerator",
    "amp",
    "autograd",
    "backends",
    "compiler",
    "cuda",
    "data",
    "debug",
    "distributed",
    "distributions",
    "errors",
    "fft",
    "func",
    "functional",
    "jit",
    "linalg",
    "masked",
    "multiprocessing",
    "nn",
    "onnx",
    "optim",
    "persistent",
    "profiler",
    "random",
    "signal",
    "sparse",
    "special",
    "tensor_ops",
    "tensor_ops_cpp",
    "tensor_ops_cuda",
    "tensor_ops_opencl",
    "testing",
    "types",
    "utils",
    "version",
]
_SAME = {"mps": "gt.cuda", "mtia": "gt.cuda", "xpu": "gt.cuda"}  # modules of other devices, for scripts
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
        if name in functions:
            value = functions[name]
        elif name.endswith("_") and hasattr(importlib.import_module("gt.client.autograd").Tensor, name):
            value = getattr(
                importlib.import_module("gt.client.autograd").Tensor, name
            )  # PyTorch has its methods that write in place as functions, too
        else:
            value = importlib.import_module("gt.missing_names").of("gt")(name)  # raises, with the alternative
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    functions = importlib.import_module("gt.client.functions").FUNCTIONS
    return sorted({*globals(), *__all__, *functions})
