"""A kernel that loops up to an argument, to ask whether Triton's interpreter can. In a file, since Triton reads its source."""

import triton
import triton.language as tl


@triton.jit
def count_up_to(counted_ptr, end):
    counted = 0
    for _ in range(0, end, 1):
        counted += 1
    tl.store(counted_ptr, counted)
