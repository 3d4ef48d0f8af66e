"""The reference executor with every product by OpenCL; norms, attention and sampling stay NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.persistent.executor import ExecutorSettings
from gt.persistent.numpy_executor import NumpyExecutor
from gt.persistent.program import DecodeProgram, Linear
from gt.tensor_ops.opencl.backend import device

SOURCE = """
// One work-item for each output of each row.
__kernel void product(__global const float* x, __global const float* w, __global float* y, uint width, uint outputs) {
  size_t output = get_global_id(0), row = get_global_id(1);
  __global const float* a = x + row * width;
  __global const float* b = w + output * width;
  float sum = 0;
  for (uint k = 0; k < width; k++) sum = fma(a[k], b[k], sum);
  y[row * outputs + output] = sum;
}
"""


class OpenCLExecutor(NumpyExecutor):
    options: tuple[str, ...] = ()

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        super().__init__(program, settings)
        self.opened = device()
        cl, context = self.opened.cl, self.opened.context
        self.product = cl.Kernel(cl.Program(context, SOURCE).build(), "product")
        flags = cl.mem_flags
        numbers = {layer.weight.number for layer in program.layers if isinstance(layer, Linear)}
        self.held: dict[int, Any] = {
            number: cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=program.weights[number])
            for number in numbers
        }

    def linear(self, layer: Linear, x: np.ndarray) -> np.ndarray:
        cl, context, queue = self.opened.cl, self.opened.context, self.opened.queue
        x = np.ascontiguousarray(x, np.float32)
        outputs, width = layer.weight.shape
        y = np.empty((len(x), outputs), np.float32)
        if not len(x):  # a chunk of a prompt without requested logits; OpenCL has no empty buffers
            return y
        given = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        made = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, y.nbytes)
        self.product(
            queue, (outputs, len(x)), None, given, self.held[layer.weight.number], made, np.uint32(width), np.uint32(outputs)
        )
        cl.enqueue_copy(queue, y, made)
        return y if layer.bias is None else y + self.weight(layer.bias)

    def close(self) -> None:
        super().close()
        self.held = {}
