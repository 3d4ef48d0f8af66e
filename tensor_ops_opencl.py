"""`import tensor_ops_opencl`: the same module as `gt.tensor_ops_opencl`, under the name that the backend guide gives it."""

from gt.tensor_ops_opencl import gelu, get_opencl_info, rms_norm, silu

__all__ = ["gelu", "get_opencl_info", "rms_norm", "silu"]
