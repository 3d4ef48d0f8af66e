"""Both gradients of a convolution in one call on CPUs: the bits of two calls, in traces and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gt
from gt.ops import Kind, infer, row
from gt.program import Instruction, Program
from gt.spec import Spec, float32, float64
from gt.testing import cluster
from gt.worker.engine.torch.engine import TorchEngine
from gt.worker.engine.torch.pairs import half
from gt.worker.programs.compile import Executable, Ready

pytestmark = pytest.mark.default("GT_AUTO_COMPILE", "GT_TRACE", "GT_WORKER_BATCH_SIZE")  # a test of their effect
SHAPES = [  # images, weight, and how
    ((2, 3, 8, 8), (4, 3, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((3, 4, 9, 7), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    ((2, 4, 5, 5), (8, 4, 1, 1), {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}),
    ((8, 16, 16, 16), (16, 16, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((2, 3, 9), (4, 3, 3), {"stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}),
]


def kinds(images: tuple, weight: tuple, how: dict, dtype: Any = float32) -> tuple[Kind, Kind]:
    """The gradients of the images and of the weight."""
    conv = row("conv")
    g = infer(conv, (Spec(images, dtype), Spec(weight, dtype)), tuple(how[n] for n in conv.statics)).outs[0]
    found = []
    for name, other, size in (("conv_transpose", weight, images[2:]), ("conv_weight_grad", images, weight[2:])):
        settings = {**how, "size": size}
        found.append(infer(row(name), (g, Spec(other, dtype)), tuple(settings[n] for n in row(name).statics)))
    return found[0], found[1]


@pytest.mark.parametrize("last", ["weight", "images"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("images", "weight", "how"), SHAPES)
def test_a_pair_has_the_bits_of_its_two_kernels(images: tuple, weight: tuple, how: dict, layout: Any, last: str) -> None:
    if layout is torch.channels_last and len(images) != 4:
        pytest.skip("images of one axis have one layout")
    engine, (to_images, to_weight) = TorchEngine("cpu"), kinds(images, weight, how)
    torch.manual_seed(0)
    g = torch.randn(to_images.ins[0].shape)
    a, w = (torch.randn(s).contiguous(memory_format=layout) for s in (images, weight))
    halves = [half(Instruction(n, kind, (3,), (1, 2))) for n, kind in enumerate((to_images, to_weight))]
    assert halves[0] is not None and halves[1] is not None
    assert halves[0][0] == halves[1][0] and (halves[0][1], halves[1][1]) == (False, True)
    order = [(to_images, (g, w)), (to_weight, (g, a))]
    order = order if last == "weight" else order[::-1]
    many = engine.many(order[1][0])
    assert many is not None
    for (kind, call), (made,) in zip(order, many([call for _, call in order]), strict=True):
        assert torch.equal(made, engine.kernel(kind)(*call))
    y = F.conv1d if len(images) == 3 else F.conv2d
    x = [a.clone().requires_grad_(), w.clone().requires_grad_()]
    exact = [a.double().requires_grad_(), w.double().requires_grad_()]
    for images_and_weight, arrived in ((x, g), (exact, g.double())):
        y(*images_and_weight, None, how["stride"], how["padding"], how["dilation"], how["groups"]).backward(arrived)
    for (kind, _), (made,) in zip(order, many([call for _, call in order]), strict=True):
        at = int(kind is to_weight)
        theirs, true = x[at].grad.double(), exact[at].grad
        torch.testing.assert_close(made.double(), true, rtol=1.3e-6, atol=1e-5 + (theirs - true).abs().max().item())


def test_gradients_of_other_convolutions_are_no_pairs() -> None:
    images, weight, how = SHAPES[0]
    to_images, to_weight = kinds(images, weight, how)
    key = half(Instruction(1, to_weight, (3,), (1, 2)))
    assert key != half(Instruction(1, to_weight, (3,), (4, 2))), "of another gradient"
    for other in (kinds(images, weight, {**how, "padding": (0, 0)}), kinds((2, 3, 8, 9), weight, how)):
        found = half(Instruction(1, other[0], (3,), (1, 2)))
        assert key is not None and found is not None and found[0] != key[0]
    assert half(Instruction(1, kinds(images, weight, how, float64)[0], (3,), (1, 2))) is None
    padded = infer(row("conv_transpose"), (Spec((2, 4, 3, 3), float32), Spec((4, 3, 3, 3), float32)), tuple(
        {**how, "dilation": (2, 2), "size": (6, 6)}[n] for n in row("conv_transpose").statics
    ))  # fmt: skip
    assert half(Instruction(1, padded, (3,), (1, 2))) is None, "an output padding: no convolution has this result"
    still = {"stride": (0, 0), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "size": (3, 3)}
    odd = infer(row("conv_transpose"), (Spec((2, 4, 1, 1), float32), Spec((4, 3, 3, 3), float32)), tuple(
        still[n] for n in row("conv_transpose").statics
    ))  # fmt: skip
    assert half(Instruction(1, odd, (3,), (1, 2))) is None, "a faulty client's stride"


def test_a_program_has_them_in_one_call_and_two_convolutions_of_one_gradient_in_two() -> None:
    to_images, to_weight = kinds(*SHAPES[0])
    engine = TorchEngine("cpu")
    ready = {n: Ready(kind, engine.kernel(kind)) for n, kind in ((1, to_images), (2, to_weight))}
    body = (
        Instruction(1, to_images, (6,), (1, 2)), Instruction(1, to_images, (7,), (1, 3)),
        Instruction(2, to_weight, (8,), (1, 4)), Instruction(2, to_weight, (9,), (1, 5)),
    )  # fmt: skip
    program = Executable(Program(9, 5, body, (6, 7, 8, 9)), ready, engine)
    assert [len(ins.parts) for ins in program.lowered.instructions] == [2, 2]
    inputs = [torch.randn(s) for s in (to_images.ins[0].shape, *[SHAPES[0][1]] * 2, *[SHAPES[0][0]] * 2)]
    made = program.function(list(inputs))
    for ins, array in zip(body, made, strict=True):
        assert torch.equal(array, engine.kernel(ins.kind)(*[inputs[o - 1] for o in ins.operands]))


def _trained(lib: Any, steps: int) -> list[np.ndarray]:
    """Two convolutions with batch norms, a residual and SGD: losses, weights, running statistics."""
    torch.manual_seed(0)
    nn = lib.nn
    start = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), *[torch.nn.BatchNorm2d(4) for _ in range(5)])
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *[nn.BatchNorm2d(4) for _ in range(5)])
    model.load_state_dict(start.state_dict())
    optimizer = lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rng, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x = lib.from_numpy(rng.standard_normal((4, 3, 6, 6)).astype(np.float32))
        h = lib.relu(model(x))
        h = nn.functional.conv2d(h, model[0].weight[:, :1].expand(4, 4, 3, 3), padding=1) + h
        loss = (h**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [np.array(losses), *[np.asarray(t.detach()) for t in model.state_dict().values()]]


def test_training_is_pytorchs() -> None:
    with cluster(1, engine="pytorch") as c:
        ours = _trained(gt, 12)
        known = [ready for space in c.workers[0].spaces.values() for _, _, ready in space.kinds.values()]
    programs = [ready.lowered for ready in known if isinstance(ready, Executable) and ready.calls > 2]
    fused = {(ins.op.name, len(ins.parts)) for program in programs for ins in program.instructions if ins.parts}
    assert {("lerp", 10), ("add", 5)} <= fused and any(name.startswith("conv_") for name, _ in fused)
    for a, b in zip(ours, _trained(torch, 12), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
