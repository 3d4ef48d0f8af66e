"""Asks whether Triton's interpreter can run a loop up to an argument: before Triton 3.7 it takes `int` of an array of one
element, which NumPy refuses from 2.4 on. A file of its own, since Triton reads a kernel's source."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def count_up_to(counted_ptr, end):
    counted = 0
    for _ in range(0, end, 1):
        counted += 1
    tl.store(counted_ptr, counted)


if __name__ == "__main__":
    counted = torch.zeros(1, dtype=torch.int32)
    try:
        count_up_to[(1,)](counted, 5)
    except Exception as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        sys.exit(f"Triton's interpreter cannot loop up to an argument: {error.__cause__}")
    assert counted.item() == 5
