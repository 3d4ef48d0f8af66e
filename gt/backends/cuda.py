"""Settings that scripts assign under `torch.backends.cuda`, accepted without effect on a client."""


class matmul:
    """Workers multiply float32 in float32, whatever is set here."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = allow_bf16_reduced_precision_reduction = True
    fp32_precision = "none"


def is_built() -> bool:
    """False: a script has no device of its own."""
    return False


def _taken(enabled: bool) -> None:
    """Without effect: a worker's engine chooses its attention kernel."""


enable_flash_sdp = enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = _taken
