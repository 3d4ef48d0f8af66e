"""Settings that scripts assign under `torch.backends.cuda`. Those of `matmul` about float32 hold on GPU workers; the others are
accepted without effect on a client."""

from gt.backends.precision import PRODUCTS
from gt.ops.table import HIGHEST

FP32 = {"none": HIGHEST, "ieee": HIGHEST, "tf32": "high"}


class _Products:
    """`allow_tf32` and `fp32_precision` are other names of `gt.set_float32_matmul_precision`."""

    allow_fp16_reduced_precision_reduction = allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        """Whether GPU workers may round float32 operands of matrix products to TF32."""
        return PRODUCTS.value != HIGHEST

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        PRODUCTS.set("high" if allow else HIGHEST)

    @property
    def fp32_precision(self) -> str:
        """ "tf32" if float32 operands of matrix products may be rounded to TF32, "ieee" if not."""
        return "tf32" if self.allow_tf32 else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in FP32:
            raise ValueError(f"fp32_precision is {precision!r}: expected one of {', '.join(FP32)}")
        PRODUCTS.set(FP32[precision])


matmul = _Products()


def is_built() -> bool:
    """False: a script has no device of its own."""
    return False


def _taken(enabled: bool) -> None:
    """Without effect: a worker's engine chooses its attention kernel."""


enable_flash_sdp = enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = _taken
