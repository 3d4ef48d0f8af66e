"""`import tensor_ops_cuda`: the same module as `gt.tensor_ops_cuda`, under the name that the backend guide gives it."""

from gt.tensor_ops_cuda import gelu, get_cuda_info, rms_norm, silu

__all__ = ["gelu", "get_cuda_info", "rms_norm", "silu"]
