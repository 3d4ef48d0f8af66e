"""Which kernel computes a convolution on a CPU, and that its numbers are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile

from gt.ops import infer, row
from gt.spec import Spec, float32
from gt.worker.engine.torch.engine import TorchEngine
from gt.worker.engine.torch.layers import ON_ARM

PLAIN = {"aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward"}
SAME = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
BOTH, GRADIENTS, NEITHER = (True, True), (False, True), (False, False)
SHAPES = [  # images, weight, how, and whether the plain kernel computes the convolution, and its gradients: on x86-64, on ARM
    ((8, 3, 16, 16), (8, 3, 3, 3), SAME, BOTH, BOTH),
    ((8, 8, 16, 16), (16, 8, 3, 3), {**SAME, "stride": (2, 2)}, GRADIENTS, BOTH),
    ((8, 8, 16, 16), (16, 8, 1, 1), {**SAME, "stride": (2, 2), "padding": (0, 0)}, BOTH, BOTH),
    ((8, 8, 16, 16), (8, 8, 3, 3), SAME, NEITHER, BOTH),
    ((8, 16, 16, 16), (16, 16, 3, 3), SAME, NEITHER, GRADIENTS),
    ((16, 64, 16, 16), (64, 64, 3, 3), SAME, NEITHER, NEITHER),
    ((2, 4, 9, 9), (6, 4, 3, 3), {**SAME, "dilation": (2, 2)}, NEITHER, NEITHER),
    ((2, 4, 9, 9), (6, 2, 3, 3), {**SAME, "groups": 2}, NEITHER, NEITHER),
]


def run(name: str, how: dict[str, Any], *operands: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The result of an op's kernel, and whether a plain convolution computed it."""
    op = row(name)
    kind = infer(op, tuple(Spec(tuple(a.shape), float32) for a in operands), tuple(how[n] for n in op.statics))
    kernel = TorchEngine("cpu").kernel(kind)
    with torch.inference_mode(), profile() as seen:
        made = kernel(*operands)
    return made, bool(PLAIN & {event.name for event in seen.function_events})


@pytest.mark.parametrize(("images", "weight", "how", "on_x86", "on_arm"), SHAPES)
def test_small_convolutions_are_plain_ones_with_the_numbers_of_pytorch(
    images: tuple, weight: tuple, how: dict[str, Any], on_x86: tuple[bool, bool], on_arm: tuple[bool, bool]
) -> None:
    forward, backward = on_arm if ON_ARM else on_x86
    torch.manual_seed(0)
    a, w, b = torch.randn(images), torch.randn(weight), torch.randn(weight[0])
    x = [t.clone().requires_grad_() for t in (a, w)]
    y = F.conv2d(x[0], x[1], b, how["stride"], how["padding"], how["dilation"], how["groups"])
    g = torch.randn(y.shape)
    y.backward(g)
    made, plain = run("conv", how, a, w, b)
    assert plain is forward
    torch.testing.assert_close(made, y.detach(), atol=1e-4, rtol=1e-4)
    for name, size, other, grad in (
        ("conv_transpose", images[2:], w, x[0].grad),
        ("conv_weight_grad", weight[2:], a, x[1].grad),
    ):
        made, plain = run(name, {**how, "size": size}, g, other)
        assert plain is backward, name
        torch.testing.assert_close(made, grad, atol=1e-3, rtol=1e-4)


def test_images_and_weights_of_another_layout_are_left_to_the_library() -> None:
    a, w = torch.randn(8, 3, 16, 16), torch.randn(8, 3, 3, 3)
    last = a.contiguous(memory_format=torch.channels_last)
    made, plain = run("conv", SAME, last, w)
    assert not plain
    torch.testing.assert_close(made, F.conv2d(a, w, None, 1, 1), atol=1e-4, rtol=1e-4)
