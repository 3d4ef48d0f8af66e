"""`import tensor_ops_cpp`: the same module as `gt.tensor_ops_cpp`, under the name that the backend guide gives it."""

from gt.tensor_ops_cpp import gelu, get_optimization_info, rms_norm, silu

__all__ = ["gelu", "get_optimization_info", "rms_norm", "silu"]
