"""The members of a module: names, state, hooks, containers, initial values."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import compare_modules, numbers, random_state

X = numbers(3, 4)


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def _net(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = m.nn.ModuleList([m.nn.Linear(4, 4) for _ in range(2)])
            self.heads = m.nn.ModuleDict({"a": m.nn.Linear(4, 2), "b": m.nn.Sequential(m.nn.BatchNorm1d(4), m.nn.Linear(4, 3))})
            self.scales = m.nn.ParameterList([m.ones(4), m.ones(1)])
            self.named = m.nn.ParameterDict({"shift": m.zeros(4)})
            self.register_buffer("seen", m.zeros(2))
            self.register_buffer("passing", m.zeros(2), persistent=False)
            self.tied = self.blocks[0]
            self.own = m.nn.Parameter(m.ones(1))

        def forward(self, given):
            x = given
            for block, scale in zip(self.blocks, self.scales):
                x = block(x).tanh() * scale + self.named["shift"]
            return self.heads["a"](self.tied(x)) * self.own, self.heads["b"](given)

    return Net()


def test_a_tree_is_pytorchs() -> None:
    own, theirs = _net(gt), _net(torch)
    assert list(own.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert [n for n, _ in own.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert [n for n, _ in own.named_buffers()] == [n for n, _ in theirs.named_buffers()]
    assert [n for n, _ in own.named_children()] == [n for n, _ in theirs.named_children()]
    compare_modules(own, theirs, (numbers(32, 4),))


def test_state_moves_both_ways() -> None:
    own, theirs = _net(gt), _net(torch)
    random_state(theirs)
    own.load_state_dict(theirs.state_dict())
    again = _net(torch)
    again.load_state_dict({k: v.torch() for k, v in own.state_dict().items()})
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_a_state_that_does_not_fit_is_refused() -> None:
    model = gt.nn.Linear(2, 3)
    with pytest.raises(ValueError, match="missing.*bias.*unexpected.*extra"):
        model.load_state_dict({"weight": gt.zeros(3, 2), "extra": gt.zeros(1)})
    with pytest.raises(ValueError, match=r"weight has shape \(3, 2\)"):
        model.load_state_dict({"weight": gt.zeros(2, 3), "bias": gt.zeros(3)})
    keys = model.load_state_dict({"weight": np.ones((3, 2)), "extra": gt.zeros(1)}, strict=False)
    assert keys.missing_keys == ["bias"] and keys.unexpected_keys == ["extra"]
    assert model.weight.tolist() == [[1.0, 1.0]] * 3 and model.weight.dtype is gt.float32


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_a_tensor_taken_from_a_state_changes_with_the_model_and_a_copy_does_not(m: Any) -> None:
    model = m.nn.Linear(2, 1)
    state = model.state_dict()
    copied = state["weight"].clone()
    before = copied.numpy().copy()
    model(m.ones(1, 2)).sum().backward()
    m.optim.SGD(model.parameters(), lr=1.0).step()
    assert np.array_equal(copied.numpy(), before) and not np.array_equal(state["weight"].numpy(), before)


def test_a_deep_copy_is_apart() -> None:
    model = _net(gt)
    other = copy.deepcopy(model)
    assert list(other.state_dict()) == list(model.state_dict()) and other.tied is other.blocks[0]
    with gt.no_grad():
        other.own += 1
    assert model.own.item() == 1 and other.own.item() == 2
    assert not {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}


def test_dtypes_modes_and_gradients_reach_everything() -> None:
    model = _net(gt)
    assert {p.dtype for p in model.half().parameters()} == {gt.float16}
    assert model.to(gt.float64).heads["b"][0].running_mean.dtype is gt.float64
    assert model.heads["b"][0].num_batches_tracked.dtype is gt.int64
    assert not any(m.training for m in model.eval().modules()) and all(m.training for m in model.train().modules())
    assert not any(p.requires_grad for p in model.requires_grad_(False).parameters())
    names = []
    model.apply(lambda m: names.append(type(m).__name__))
    assert names[-1] == "Net" and names.count("Linear") == 4 + 1


def test_hooks_see_and_change_arguments_and_results() -> None:
    model = gt.nn.Linear(4, 2)
    seen = []
    before = model.register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    after = model.register_forward_hook(lambda m, args, y: seen.append(args[0].sum().item()) or y + 1)
    y = model(gt.ones(1, 4))
    assert seen == [0.0] and np.allclose(y.numpy(), model.bias.numpy() + 1)
    before.remove()
    after.remove()
    assert not np.allclose(model(gt.ones(1, 4)).numpy(), y.numpy()) and len(seen) == 1


def test_paths_lead_to_parts() -> None:
    model = _net(gt)
    assert model.get_submodule("heads.b.0") is model.heads["b"][0]
    assert model.get_parameter("blocks.1.bias") is model.blocks[1].bias
    with pytest.raises(AttributeError, match="no module 'head'.*heads"):
        model.get_submodule("head")


def test_containers_are_lists_and_dicts() -> None:
    a, b, c = gt.nn.Identity(), gt.nn.ReLU(), gt.nn.Tanh()
    row = gt.nn.ModuleList([a]) + [b]
    row += [c]
    assert len(row) == 3 and row[-1] is c and list(row[1:]) == [b, c] and b in row
    row.insert(0, c)
    del row[1]
    row[1] = a
    assert list(row) == [c, a, c] and row.pop() is c and [n for n, _ in row.named_children()] == ["0", "1"]
    chain = gt.nn.Sequential({"first": a, "second": b})
    assert chain.first is a and isinstance(chain[:1], gt.nn.Sequential) and len(chain.append(c)) == 3
    with pytest.raises(IndexError):
        chain[3]
    named = gt.nn.ModuleDict({"x": a})
    named.update({"y": b})
    assert list(named) == ["x", "y"] and "y" in named and named.pop("x") is a and dict(named.items()) == {"y": b}
    params = gt.nn.ParameterList([gt.ones(1)])
    params.append(gt.zeros(2))
    assert all(isinstance(p, gt.nn.Parameter) for p in params) and len(list(params.parameters())) == 2
    weights = gt.nn.ParameterDict({"w": gt.ones(1)})
    assert isinstance(weights["w"], gt.nn.Parameter) and list(weights.keys()) == ["w"]


def test_a_module_without_super_init_still_works() -> None:
    class Bare(gt.nn.Module):
        def __init__(self):
            self.layer = gt.nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    assert [n for n, _ in Bare().named_parameters()] == ["layer.weight", "layer.bias"]
    assert Bare()(gt.ones(1, 2)).shape == (1, 1)


def _kept_elsewhere(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.row = [m.nn.Linear(2, 2), m.nn.Parameter(m.ones(1))]
            self.pair = (m.nn.Linear(2, 2),)
            self.named = {"deep": m.nn.Linear(2, 1)}
            self.leaf = m.ones(2, requires_grad=True)
            self._hidden = m.nn.Linear(2, 1)

    return Net()


def test_only_attributes_that_are_parameters_or_modules_are_a_modules_own() -> None:
    """A plain list, tuple, dict or tensor is not: PyTorch's optimizers do not see it."""
    own, theirs = _kept_elsewhere(gt), _kept_elsewhere(torch)
    assert (
        [n for n, _ in own.named_parameters()]
        == [n for n, _ in theirs.named_parameters()]
        == ["_hidden.weight", "_hidden.bias"]
    )
    assert len(list(own.parameters())) == 2
    assert [n for n, _ in own.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert list(own.state_dict()) == list(theirs.state_dict())
    assert repr(own).splitlines()[0] == repr(theirs).splitlines()[0]


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_a_parameter_is_replaced_by_parameters_only(m: Any) -> None:
    layer = m.nn.BatchNorm1d(2)
    with pytest.raises(TypeError, match="cannot assign"):
        layer.weight = m.ones(2)
    with pytest.raises(TypeError, match="cannot assign"):
        layer.running_mean = 3.0
    layer.weight = m.nn.Parameter(m.zeros(2))
    layer.bias = None
    layer.running_mean = m.ones(2)
    assert [n for n, _ in layer.named_parameters()] == ["weight"]
    assert layer.state_dict()["running_mean"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_members_are_reached_by_their_dictionaries(m: Any) -> None:
    net = m.nn.Sequential(m.nn.Linear(2, 2), m.nn.BatchNorm1d(2))
    assert list(net._modules) == ["0", "1"] and list(net[1]._buffers) == ["running_mean", "running_var", "num_batches_tracked"]
    net._modules["0"] = m.nn.Linear(2, 3)
    assert net[0].out_features == 3
    weight = net[0]._parameters.pop("weight")
    assert [n for n, _ in net[0].named_parameters()] == ["bias"]
    net[0]._parameters["weight"] = weight
    assert net[0](m.ones(4, 2)).shape == (4, 3)


# Beginnings

BIG = (200, 300)


@pytest.mark.parametrize(
    "name, keywords",
    [
        ("uniform_", {"a": -2.0, "b": 1.0}), ("normal_", {"mean": 0.5, "std": 2.0}), ("trunc_normal_", {"std": 1.0, "a": -1.0}),
        ("constant_", {"val": 0.3}), ("ones_", {}), ("zeros_", {}), ("xavier_uniform_", {"gain": 2.0}), ("xavier_normal_", {}),
        ("kaiming_uniform_", {"mode": "fan_out"}), ("kaiming_normal_", {"nonlinearity": "relu"}), ("eye_", {}),
    ],
)  # fmt: skip
def test_a_beginning_is_distributed_as_pytorchs(name: str, keywords: dict) -> None:
    gt.manual_seed(1)
    torch.manual_seed(1)
    own, theirs = gt.nn.Parameter(gt.zeros(*BIG)), torch.zeros(BIG)
    assert getattr(gt.nn.init, name)(own, **keywords) is own and own.node is None and own.requires_grad
    getattr(torch.nn.init, name)(theirs, **keywords)
    a, b = np.sort(own.numpy().reshape(-1)), np.sort(theirs.numpy().reshape(-1))
    spread = max(b.std(), 1e-6)
    assert np.abs(a[600:-600] - b[600:-600]).max() < 0.1 * spread  # every hundredth of the distribution
    assert abs(a[0] - b[0]) < 1.0 * spread and abs(a[-1] - b[-1]) < 1.0 * spread


def test_orthogonal_and_dirac_beginnings() -> None:
    for shape in ((5, 8), (8, 5), (4, 2, 3)):
        w = gt.nn.init.orthogonal_(gt.zeros(*shape), gain=2.0).numpy().reshape(shape[0], -1)
        small = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
        assert np.allclose(small, 4 * np.eye(len(small)), atol=1e-4)
    own, theirs = gt.nn.init.dirac_(gt.zeros(4, 2, 3, 3), 2), torch.nn.init.dirac_(torch.zeros(4, 2, 3, 3), 2)
    assert np.array_equal(own.numpy(), theirs.numpy())


def test_gains_are_pytorchs() -> None:
    for name, param in (
        ("linear", None),
        ("tanh", None),
        ("relu", None),
        ("selu", None),
        ("leaky_relu", 0.2),
        ("sigmoid", None),
    ):
        assert gt.nn.init.calculate_gain(name, param) == torch.nn.init.calculate_gain(name, param)
    with pytest.raises(ValueError, match="known are"):
        gt.nn.init.calculate_gain("rleu")


@pytest.mark.parametrize("name, args", [("Linear", (300, 200)), ("Conv2d", (30, 40, 5)), ("Embedding", (200, 300)),
                                        ("MultiheadAttention", (64, 4)), ("ConvTranspose2d", (30, 40, 5))])  # fmt: skip
def test_a_layer_begins_as_pytorchs_does(name: str, args: tuple) -> None:
    gt.manual_seed(2)
    torch.manual_seed(2)
    own, theirs = getattr(gt.nn, name)(*args), getattr(torch.nn, name)(*args)
    for (n, p), q in zip(own.named_parameters(), theirs.parameters()):
        assert tuple(p.shape) == tuple(q.shape)
        a, b = p.detach().numpy(), q.detach().numpy()
        assert a.std() == pytest.approx(b.std(), rel=0.25 if a.size < 1000 else 0.02, abs=1e-9), n
        assert abs(a).max() == pytest.approx(abs(b).max(), rel=0.3, abs=1e-9), n


def test_the_padding_row_begins_at_zero() -> None:
    assert gt.nn.Embedding(4, 3, padding_idx=1).weight[1].tolist() == [0.0, 0.0, 0.0]
    table = gt.nn.Embedding.from_pretrained(gt.ones(2, 3))
    assert not table.weight.requires_grad and table(gt.tensor([1])).tolist() == [[1.0, 1.0, 1.0]]


# Clipping


@pytest.mark.parametrize("order", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("most", [0.5, 100.0])
def test_clipping_by_norm_is_pytorchs(order: float, most: float) -> None:
    grads = [numbers(3, 4), numbers(5, seed=3)]
    own, theirs = (
        [gt.zeros(*g.shape, requires_grad=True) for g in grads],
        [torch.zeros(g.shape, requires_grad=True) for g in grads],
    )
    for p, q, g in zip(own, theirs, grads):
        p.grad, q.grad = gt.tensor(g), torch.tensor(g)
    total = gt.nn.utils.clip_grad_norm_((p for p in own), most, order)
    assert total.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs, most, order).item(), rel=1e-5)
    for p, q in zip(own, theirs):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5)


def test_clipping_by_value_and_gradients_that_cannot_be_clipped() -> None:
    p = gt.zeros(3, requires_grad=True)
    p.grad = gt.tensor([-3.0, 0.2, math.inf])
    with pytest.raises(RuntimeError, match="inf"):
        gt.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    gt.nn.utils.clip_grad_value_([p, gt.zeros(2, requires_grad=True)], 0.5)
    assert p.grad.tolist() == [-0.5, pytest.approx(0.2), 0.5]
    vector = gt.nn.utils.parameters_to_vector([gt.ones(2), gt.zeros(1, 2)])
    assert vector.tolist() == [1.0, 1.0, 0.0, 0.0]


# Dropout


def test_dropout_keeps_the_mean_and_passes_gradients_where_it_kept() -> None:
    gt.manual_seed(5)
    x = gt.ones(200, 200, requires_grad=True)
    y = gt.nn.Dropout(0.3)(x)
    y.sum().backward()
    values = y.numpy()
    assert set(np.unique(values)) <= {np.float32(0), np.float32(1 / 0.7)} and abs(values.mean() - 1) < 0.02
    assert np.array_equal(x.grad.numpy(), values)
    assert gt.nn.Dropout(0.3).eval()(x) is x and gt.nn.Dropout(1.0)(x).sum().item() == 0


def test_dropout_of_channels_drops_them_whole() -> None:
    gt.manual_seed(5)
    for layer, shape in ((gt.nn.Dropout1d(0.5), (20, 30, 4)), (gt.nn.Dropout2d(0.5), (20, 30, 2, 2))):
        y = layer(gt.ones(*shape)).numpy().reshape(20, 30, 4)
        assert set(np.unique(y)) == {0.0, 2.0} and (y == y[:, :, :1]).all()


def test_in_place_activations_change_the_variable() -> None:
    x = gt.tensor([-1.0, 2.0])
    assert gt.nn.ReLU(inplace=True)(x) is x and x.tolist() == [0.0, 2.0]
    with pytest.raises(RuntimeError, match="leaf"):
        gt.nn.functional.relu(gt.ones(2, requires_grad=True), inplace=True)


def test_the_data_of_a_parameter_is_changed_and_exchanged_as_in_pytorch() -> None:
    with gt.testing.cluster():
        for t in (gt, torch):
            w = t.nn.Parameter(t.zeros(2, 3))
            w.data.fill_(2.0).mul_(3.0)
            w.data[0] = -1.0
            w.data.add_(1.0)
            t.nn.init.constant_(w.data[1], 5.0)
            assert w.tolist()[0] == [0.0] * 3 and w.requires_grad and not w.data.requires_grad and w.is_leaf
            (w * 2.0).sum().backward()
            w.data -= 0.5 * w.grad.data
            w.grad.data.zero_()
            assert w.tolist()[0] == [-1.0] * 3 and w.grad.tolist() == [[0.0] * 3] * 2
            w.data = t.ones(3, 1)
            assert w.shape == (3, 1) and w.requires_grad and isinstance(w.data, t.Tensor)
            assert (w.data + 1).tolist() == [[2.0]] * 3
        with pytest.raises(TypeError, match="expected a tensor"):
            gt.nn.Parameter(gt.zeros(2)).data = 3.0


WRONG: list[Any] = [
    (TypeError, lambda m: m.nn.Sequential(len)),
    (TypeError, lambda m: m.nn.ModuleList([1])),
    (TypeError, lambda m: m.nn.ModuleDict({"a": 1})),
    (TypeError, lambda m: m.nn.Module().register_buffer("a", 3)),
    (TypeError, lambda m: m.nn.Module().register_parameter("a", m.ones(1))),
    (TypeError, lambda m: m.nn.Module().add_module("a", 3)),
    (KeyError, lambda m: m.nn.Module().register_buffer("a.b", m.ones(1))),
    (KeyError, lambda m: m.nn.Linear(1, 1).register_buffer("weight", m.ones(1))),
    (KeyError, lambda m: m.nn.Module().add_module("training", m.nn.ReLU())),
]


def test_an_invalid_member_raises_as_in_pytorch() -> None:
    for m in (gt, torch):
        for error, call in WRONG:
            with pytest.raises(error):
                call(m)
        again = m.nn.Module()
        for _ in range(2):
            again.register_buffer(name="seen", tensor=m.ones(1))
            again.register_parameter(name="w", param=m.nn.Parameter(m.ones(1)))
            again.add_module("inner", m.nn.ReLU())


def test_lists_of_equal_modules_and_loaded_states_print_as_in_pytorch() -> None:
    def made(m: Any) -> Any:
        return m.nn.ModuleList([*(m.nn.Linear(2, 2) for _ in range(3)), m.nn.Sequential(m.nn.ReLU()), m.nn.ReLU()])

    assert repr(made(gt)) == repr(made(torch)) and repr(gt.nn.ModuleList()) == repr(torch.nn.ModuleList())
    layer = gt.nn.Linear(1, 1)
    assert str(layer.load_state_dict(layer.state_dict())) == "<All keys matched successfully>"
    assert "missing_keys=['weight', 'bias']" in str(layer.load_state_dict({}, strict=False))


def test_a_module_set_as_an_attribute_of_a_container_is_among_its_modules() -> None:
    """As functions that exchange layers of any model do."""
    found = []
    for m in (gt, torch):
        net = m.nn.Sequential(
            m.nn.Linear(2, 2), m.nn.Tanh(), m.nn.ModuleList([m.nn.ReLU()]), m.nn.ModuleDict({"a": m.nn.ReLU()})
        )
        setattr(net, "0", m.nn.Identity())
        setattr(net[2], "0", m.nn.Sigmoid())
        net[3].a, net[3].b = m.nn.Tanh(), m.nn.ReLU()
        lists = repr(net)
        del net[3], net[2]
        net.last = m.nn.Softplus()
        out = net(m.tensor([[1.0, -1.0]])).tolist()
        net._modules["after"] = m.nn.ReLU()
        delattr(net, "1")
        found.append((lists, np.round(out, 4).tolist(), repr(net), len(net), list(net.state_dict())))
    assert found[0] == found[1]


def test_a_buffer_that_was_deleted_is_gone() -> None:
    for m in (gt, torch):
        owner = m.nn.Module()
        owner.register_buffer("seen", m.ones(1))
        del owner.seen
        assert not list(owner.buffers()) and not owner.state_dict()
