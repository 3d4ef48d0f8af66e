"""Parameters computed from others, modules that learn their sizes, wrappers: against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import close, numbers


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "pytorch") as made:
        yield made


def pair(make: Any) -> tuple[Any, Any]:
    """A module of each library with the same state."""
    theirs, own = make(torch.nn), make(gt.nn)
    own.load_state_dict(theirs.state_dict())
    return own, theirs


def same_run(own: Any, theirs: Any, x: np.ndarray, rtol: float = 1e-5) -> None:
    a, b = own(gt.tensor(x)), theirs(torch.tensor(x))
    close(a, b.detach(), "output", rtol, 1e-5)
    (a * a).sum().backward()
    (b * b).sum().backward()
    mine = dict(own.named_parameters())
    for name, p in theirs.named_parameters():
        close(mine[name].grad, p.grad, name, 1e-4, 1e-4)


NORMED = {
    "weight_norm": lambda nn: nn.utils.weight_norm,
    "parametrizations.weight_norm": lambda nn: nn.utils.parametrizations.weight_norm,
    "spectral_norm": lambda nn: nn.utils.spectral_norm,
    "parametrizations.spectral_norm": lambda nn: nn.utils.parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("layer", ["linear", "conv", "transposed"])
def test_normed_weights_are_pytorchs(name: str, layer: str) -> None:
    make = {"linear": lambda nn: nn.Linear(5, 3), "conv": lambda nn: nn.Conv2d(2, 4, 3),
            "transposed": lambda nn: nn.ConvTranspose2d(2, 4, 3)}[layer]  # fmt: skip
    own, theirs = pair(lambda nn: NORMED[name](nn)(make(nn)))
    assert sorted(own.state_dict()) == sorted(theirs.state_dict())
    assert sorted(n for n, _ in own.named_parameters()) == sorted(n for n, _ in theirs.named_parameters())
    x = numbers(6, 5) if layer == "linear" else numbers(2, 2, 6, 6)
    for training in (True, False):
        own.train(training)
        theirs.train(training)
        own.zero_grad()
        theirs.zero_grad()
        same_run(own, theirs, x)
    for key, value in theirs.state_dict().items():
        close(own.state_dict()[key], value, key, 1e-5, 1e-5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_norms_are_taken_off_again() -> None:
    for put, off in (("weight_norm", "remove_weight_norm"), ("spectral_norm", "remove_spectral_norm")):
        own, theirs = pair(lambda nn, put=put: getattr(nn.utils, put)(nn.Linear(4, 3)))
        own.eval(), theirs.eval()
        getattr(gt.nn.utils, off)(own), getattr(torch.nn.utils, off)(theirs)
        assert sorted(own.state_dict()) == sorted(theirs.state_dict()) == ["bias", "weight"]
        close(own.weight, theirs.weight.detach(), put, 1e-5, 1e-5)
        with pytest.raises(ValueError, match="has no"):
            getattr(gt.nn.utils, off)(own)


def symmetric(nn: Any) -> Any:
    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x: Any) -> Any:
            return x.triu()

    return Symmetric()


def doubled(nn: Any) -> Any:
    class Doubled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    return Doubled()


def test_parametrizations_are_pytorchs() -> None:
    def make(nn: Any) -> Any:
        layer = nn.Linear(3, 3)
        nn.utils.parametrize.register_parametrization(layer, "weight", symmetric(nn))
        return nn.utils.parametrize.register_parametrization(layer, "weight", doubled(nn))

    own, theirs = pair(make)
    assert sorted(own.state_dict()) == sorted(theirs.state_dict()) == ["bias", "parametrizations.weight.original"]
    same_run(own, theirs, numbers(4, 3))
    assert gt.nn.utils.parametrize.is_parametrized(own, "weight") and isinstance(own, gt.nn.Linear)
    assert type(own).__name__ == "ParametrizedLinear"
    with gt.nn.utils.parametrize.cached():
        assert own.weight is own.weight
    gt.nn.utils.parametrize.remove_parametrizations(own, "weight")
    torch.nn.utils.parametrize.remove_parametrizations(theirs, "weight")
    close(own.weight, theirs.weight.detach(), "left", 1e-6, 1e-6)
    assert type(own) is gt.nn.Linear and sorted(own.state_dict()) == ["bias", "weight"]


def test_a_parametrized_weight_can_be_assigned_through_its_inverse() -> None:
    own = gt.nn.Linear(3, 3)
    gt.nn.utils.parametrize.register_parametrization(own, "weight", symmetric(gt.nn))
    want = gt.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    own.weight = want
    close(own.weight, want.torch(), "assigned")
    gt.nn.utils.parametrize.register_parametrization(own, "bias", doubled(gt.nn))
    with pytest.raises(RuntimeError, match="no right_inverse"):
        own.bias = gt.zeros(3)
    with pytest.raises(ValueError, match="no parameter or buffer 'wieght'"):
        gt.nn.utils.parametrize.register_parametrization(own, "wieght", doubled(gt.nn))


LAZY = [("LazyLinear", (3,), (4, 5)), ("LazyConv1d", (3, 2), (2, 4, 7)), ("LazyConv2d", (3, 2), (2, 4, 7, 7)),
        ("LazyConv3d", (3, 2), (1, 2, 4, 4, 4)), ("LazyConvTranspose2d", (3, 2), (2, 4, 5, 5)), ("LazyBatchNorm1d", (), (6, 4)),
        ("LazyBatchNorm2d", (), (2, 4, 3, 3)), ("LazyInstanceNorm1d", (), (2, 4, 5))]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name, args, shape", LAZY, ids=[case[0] for case in LAZY])
def test_lazy_modules_take_the_size_of_their_first_input(name: str, args: tuple, shape: tuple) -> None:
    own, theirs = getattr(gt.nn, name)(*args), getattr(torch.nn, name)(*args)
    x = numbers(*shape)
    with pytest.raises(RuntimeError, match="call the model once"):
        list(own.parameters())
    own(gt.tensor(x)), theirs(torch.tensor(x))
    assert type(own).__name__ == type(theirs).__name__ == name.removeprefix("Lazy")
    own.load_state_dict(theirs.state_dict())
    close(own.eval()(gt.tensor(x)), theirs.eval()(torch.tensor(x)).detach(), name, 1e-4, 1e-5)


def test_wrappers_for_several_devices_call_their_module() -> None:
    model = gt.nn.Linear(3, 2)
    for wrap in (gt.nn.DataParallel, gt.nn.parallel.DistributedDataParallel):
        wrapped = wrap(model)
        assert wrapped.module is model and sorted(wrapped.state_dict()) == ["module.bias", "module.weight"]
        close(wrapped(gt.ones(1, 3)), model(gt.ones(1, 3)).detach().torch(), "wrapped")


@pytest.mark.default("GT_TRACE")
def test_a_compiled_module_is_a_module() -> None:
    gt.manual_seed(0)  # dropout may drop all that is not zero
    model = gt.nn.Sequential(gt.nn.Linear(3, 8), gt.nn.Dropout(0.5), gt.nn.ReLU(), gt.nn.Linear(8, 2),
                            gt.nn.Tanh(), gt.nn.Sigmoid(), gt.nn.ELU(), gt.nn.Softplus(), gt.nn.Softmax(-1))  # fmt: skip
    compiled = gt.compile(model, mode="reduce-overhead")
    assert isinstance(compiled, gt.nn.Module) and len(list(compiled.parameters())) == 4
    assert sorted(compiled.state_dict()) == [f"_orig_mod.{i}.{n}" for i in (0, 3) for n in ("bias", "weight")]  # as torch's
    compiled.eval()
    assert not model.training and not model[1].training
    x = gt.ones(2, 3)
    with gt.no_grad():
        found = [compiled(x).numpy() for _ in range(6)]
        np.testing.assert_allclose(found[-1], model(x).numpy(), rtol=1e-6)
    assert compiled.replays >= 2
    compiled.train()
    assert model[1].training and gt.compile(model, disable=True) is model
    optimizer = gt.optim.SGD(compiled.parameters(), lr=0.1)
    before = model[0].weight.numpy().copy()
    (compiled(x) ** 2).sum().backward()
    optimizer.step()
    assert not np.array_equal(before, model[0].weight.numpy())


def test_an_adaptive_softmax_is_pytorchs() -> None:
    own, theirs = pair(lambda nn: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 12], div_value=2.0))
    x, target = numbers(7, 8), np.array([0, 4, 5, 11, 12, 19, 3])
    a, b = own(gt.tensor(x), gt.tensor(target)), theirs(torch.tensor(x), torch.tensor(target))
    close(a.output, b.output.detach(), "output", 1e-5, 1e-5)
    close(a.loss, b.loss.detach(), "loss", 1e-5, 1e-5)
    close(own.log_prob(gt.tensor(x)), theirs.log_prob(torch.tensor(x)).detach(), "log_prob", 1e-5, 1e-5)
    assert own.predict(gt.tensor(x)).tolist() == theirs.predict(torch.tensor(x)).tolist()
    a.loss.backward()
    b.loss.backward()
    for (name, p), q in zip(own.named_parameters(), theirs.parameters()):
        close(p.grad, q.grad, name, 1e-4, 1e-5)
