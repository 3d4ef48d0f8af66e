"""Times of PyTorch's kernels on one core of a CPU, where they are more than the time to read and write their elements
(gt/ops/estimate.py). `python benchmarks/op_times.py` measures them; these are of a Xeon with AVX-512, of float32 operands of
131,072 elements that are in no cache."""

# Nanoseconds for each element of the largest operand or result, beyond reading and writing.
NANOSECONDS = {
    "sort": 60.0, "searchsorted": 80.0, "median": 19.0, "topk": 5.0, "max_at": 2.5, "min_at": 2.5, "argmax": 4.0, "argmin": 4.0,
    "any": 4.0, "all": 1.4, "var": 8.0, "std": 8.0, "logsumexp": 1.5, "mean": 0.5, "bincount": 4.0,
    "cumsum": 1.3, "cumprod": 1.3, "logcumsumexp": 36.0,
    "max_pool": 10.0, "avg_pool": 4.0, "avg_pool_grad": 5.0, "adaptive_avg_pool": 4.0, "adaptive_avg_pool_grad": 4.0,
    "adaptive_max_pool": 2.0,
    "batch_norm_train": 3.5, "batch_norm_grad": 2.0, "group_norm": 0.8, "group_norm_grad": 1.5, "layer_norm": 0.7,
    "layer_norm_grad": 1.5, "rms_norm": 2.0, "rms_norm_grad": 3.8,
    "log_softmax": 1.0, "log_softmax_grad": 1.0, "cross_entropy": 1.0, "cross_entropy_grad": 1.3,
    "pow": 5.0, "pow_grad": 5.0, "remainder": 18.0, "atan2": 2.0, "lgamma": 10.0, "digamma": 30.0,
    "softplus": 3.4, "softplus_grad": 1.0, "elu": 2.4, "elu_grad": 1.0, "gelu": 0.9, "gelu_grad": 2.3,
    "sigmoid": 0.8, "silu": 0.6,
    "silu_grad": 0.6, "tanh": 0.4,
    "erf": 0.8, "expm1": 1.8, "log1p": 1.3, "log": 0.6, "sin": 0.4, "cos": 0.4,
    "eq": 1.4, "ne": 1.4, "lt": 1.4, "le": 1.4, "gt": 1.4, "ge": 1.4, "isnan": 1.2, "cast": 1.5,
    "index_select": 2.0, "index_select_grad": 2.0, "gather": 1.8, "gather_grad": 2.8, "scatter_add": 2.0, "index": 0.8,
    "index_grad": 0.8, "index_add": 1.3, "embedding_grad": 1.5, "pad": 1.0, "slice_grad": 0.6, "integers": 20.0,
    "fft_complex": 3.4, "fft_half": 1.0, "fft_real": 0.9,
}  # fmt: skip
# For each row along the last axis, which may be short.
SHORT_ROWS = {"softmax": 80.0, "softmax_grad": 26.0, "max_at": 15.0, "min_at": 15.0}
ONE_THREAD = {"index_grad", "embedding_grad"}  # their kernels are slower with two: 4.4 and 1.2 times
