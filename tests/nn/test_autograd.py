"""The autograd API against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, numbers, to_gt, to_torch

F, T = gt.nn.functional, torch.nn.functional
X, Y = numbers(3, 4), numbers(3, 4, seed=5)


@pytest.fixture(params=ENGINES, autouse=True)
def cluster(request):
    with gt.testing.cluster(1, request.param) as made:
        yield made


def _pair(a: np.ndarray) -> tuple:
    return to_gt(a, True), to_torch(a, True)


def test_grad_is_of_chosen_inputs_and_leaves_the_others_alone() -> None:
    (x, tx), (y, ty) = _pair(X), _pair(Y)
    found = gt.autograd.grad((x * y).sin().sum(), [y, x])
    wanted = torch.autograd.grad((tx * ty).sin().sum(), [ty, tx])
    for a, b in zip(found, wanted):
        close(a, b)
    assert x.grad is None and y.grad is None


def test_grad_of_results_in_the_middle() -> None:
    x, tx = _pair(X)
    h, th = x * 2, tx * 2
    close(
        gt.autograd.grad((h * h).sum(), h, retain_graph=True)[0], torch.autograd.grad((th * th).sum(), th, retain_graph=True)[0]
    )
    parts, tparts = h.split(2, 1), th.split(2, 1)
    out, tout = (parts[0] * parts[1]).sum(), (tparts[0] * tparts[1]).sum()
    for a, b in zip(gt.autograd.grad(out, [*parts, x]), torch.autograd.grad(tout, [*tparts, tx])):
        close(a, b)


def test_several_outputs_are_summed_and_seeded() -> None:
    x, tx = _pair(X)
    seeds = (Y, numbers(4))
    found = gt.autograd.grad([x * x, x.sum(0)], x, [to_gt(s) for s in seeds])
    close(found[0], torch.autograd.grad([tx * tx, tx.sum(0)], tx, [to_torch(s) for s in seeds])[0])


def test_an_unused_input_raises_or_gives_none_or_zeros() -> None:
    x, y = to_gt(X, True), to_gt(Y, True)
    with pytest.raises(RuntimeError, match="allow_unused"):
        gt.autograd.grad(x.sum(), [x, y])
    assert gt.autograd.grad(x.sum(), [x, y], allow_unused=True)[1] is None
    assert gt.autograd.grad(x.sum(), [x, y], materialize_grads=True)[1].tolist() == np.zeros((3, 4)).tolist()


def test_a_walked_tape_is_gone_unless_it_is_kept() -> None:
    x = to_gt(X, True)
    y = (x * x).sum()
    gt.autograd.grad(y, x, retain_graph=True)
    gt.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="retain_graph"):
        gt.autograd.grad(y, x)


def test_only_the_way_to_the_inputs_is_walked() -> None:
    x, y = to_gt(X, True), to_gt(Y, True)
    seen = []
    side = y * 3
    side.register_hook(lambda g: seen.append(1))
    gt.autograd.grad((x * 2 + side).sum(), x)
    assert not seen


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (x**3).sum(),
        lambda m, x: m.exp(x.sin() * x).sum(),
        lambda m, x: (x @ x.T).tanh().sum(),
        lambda m, x: (x.softmax(1) ** 2).sum(),
        lambda m, x: (m.nn.functional.log_softmax(x, 1) * x).sum(),
        lambda m, x: m.nn.functional.gelu(x).pow(2).sum(),
        lambda m, x: m.nn.functional.silu(x).pow(2).sum(),
        lambda m, x: m.nn.functional.layer_norm(x, (4,)).pow(3).sum(),
        lambda m, x: m.nn.functional.rms_norm(x, (4,), eps=1e-3).pow(3).sum(),
        lambda m, x: m.nn.functional.group_norm(x, 2).pow(3).sum(),
        lambda m, x: m.nn.functional.batch_norm(x, None, None, training=True).pow(3).sum(),
        lambda m, x: m.nn.functional.cross_entropy(x, m.tensor([0, 3, 1])) ** 2,
        lambda m, x: m.nn.functional.conv1d(x[None], x[:2, :3][:, None].expand(2, 3, 3)).pow(2).sum(),
        lambda m, x: m.nn.functional.scaled_dot_product_attention(x, x, x).pow(2).sum(),
        lambda m, x: m.nn.functional.mse_loss(x.relu(), x * 0.5),
    ],
)
def test_second_gradients_are_pytorchs(function) -> None:
    x, tx = _pair(X)
    (g,) = gt.autograd.grad(function(gt, x), x, create_graph=True)
    (h,) = torch.autograd.grad(function(torch, tx), tx, create_graph=True)
    close(g, h, "first", 1e-4, 1e-5)
    (g * to_gt(Y)).sum().backward()
    (h * to_torch(Y)).sum().backward()
    close(x.grad, tx.grad, "second", 5e-4, 5e-5)


def test_third_gradients() -> None:
    x = gt.tensor(2.0, requires_grad=True)
    y = x**4
    for want in (32.0, 48.0, 48.0):
        (y,) = gt.autograd.grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(want)


def test_backward_with_inputs_fills_only_those() -> None:
    x, y = to_gt(X, True), to_gt(Y, True)
    gt.autograd.backward((x * y).sum(), inputs=[x])
    assert y.grad is None and np.allclose(x.grad.numpy(), Y)
    gt.autograd.backward([x.sum(), x.sum()])
    assert np.allclose(x.grad.numpy(), Y + 2)


# Hooks


def test_a_hook_sees_and_replaces_the_gradient() -> None:
    x, tx = _pair(X)
    seen, tseen = [], []
    for v, out in ((x, seen), (tx, tseen)):
        h = v * 2
        h.register_hook(lambda g: g * 3)
        h.register_hook(out.append)
        (h * h + v).sum().backward()
    close(seen[0], tseen[0])
    close(x.grad, tx.grad)


def test_a_hook_of_a_leaf_sees_the_whole_gradient_once() -> None:
    x = to_gt(X, True)
    seen = []
    handle = x.register_hook(lambda g: seen.append(g) or g * 2)
    (x * 1 + x * 2).sum().backward()
    assert len(seen) == 1 and np.allclose(seen[0].numpy(), 3) and np.allclose(x.grad.numpy(), 6)
    handle.remove()
    x.sum().backward()
    assert len(seen) == 1 and np.allclose(x.grad.numpy(), 7)


def test_a_hook_of_one_of_several_results() -> None:
    x = to_gt(X, True)
    values, _ = x.max(dim=1)
    values.register_hook(lambda g: g * 5)
    values.sum().backward()
    assert x.grad.sum().item() == 15


def test_a_retained_gradient_is_the_result_of_the_hooks() -> None:
    x, tx = _pair(X)
    grads = []
    for v in (x, tx):
        h = v * 2
        h.retain_grad()
        h.register_hook(lambda g: g * 3)
        (h * h).sum().backward()
        assert h.retains_grad and not v.retains_grad
        grads.append(h.grad)
    close(*grads)


def test_a_hook_after_accumulation_finds_the_gradient_there() -> None:
    x = to_gt(X, True)
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    (x * 2).sum().backward()
    assert seen == [24.0]


def test_a_tensor_without_gradient_cannot_be_hooked() -> None:
    with pytest.raises(RuntimeError, match="requires_grad"):
        to_gt(X).register_hook(print)
    with pytest.raises(RuntimeError):
        to_gt(X).retain_grad()


# Functions of one's own


class Scale(gt.autograd.Function):
    @staticmethod
    def forward(ctx, x, by, shift):
        ctx.save_for_backward(x)
        ctx.by = by
        assert ctx.needs_input_grad == (True, False, True)
        return x * by + shift, x.argmax()

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return g * ctx.by * x, None, g


def test_a_function_of_ones_own_has_its_own_gradient() -> None:
    x, shift = to_gt(X, True), gt.tensor(numbers(4), requires_grad=True)
    y, at = Scale.apply(x, 3.0, shift)
    assert y.requires_grad and not at.requires_grad and y.grad_fn.name == "Scale"
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), 3 * X) and np.allclose(shift.grad.numpy(), 3)


def test_a_function_can_be_differentiated_twice() -> None:
    class Cube(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = gt.tensor(X.astype(np.float64), requires_grad=True)
    assert gt.autograd.gradcheck(Cube.apply, x)
    assert gt.autograd.gradgradcheck(Cube.apply, x)


def test_a_result_that_is_saved_is_differentiated_through() -> None:
    class Exp(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = gt.tensor(1.0, requires_grad=True)
    (g,) = gt.autograd.grad(Exp.apply(x), x, create_graph=True)
    assert gt.autograd.grad(g, x)[0].item() == pytest.approx(np.e, rel=1e-5)


def test_a_function_leaves_nothing_for_the_garbage_collector(cluster) -> None:
    import gc

    class Exp(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[1]

    x = to_gt(X, True)
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            y = Exp.apply(x)
            y.sum().backward()
            x.grad = None
            del y
            cluster.settle()
            counts.append(len(cluster.workers[0].spaces["c0"].table))
        assert counts[0] == counts[2] == 1
    finally:
        gc.enable()


def test_setup_context_and_results_without_a_gradient() -> None:
    class Both(gt.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2, x * 3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, g, none):
            assert none is None
            return g * 2

    x = to_gt(X, True)
    y, z = Both.apply(x)
    assert y.requires_grad and not z.requires_grad
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), 2)
    with gt.no_grad():
        assert not Both.apply(x)[0].requires_grad


def test_a_wrong_number_of_gradients_is_said() -> None:
    class Wrong(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g, g

    with pytest.raises(RuntimeError, match="gave 2 gradients for 1"):
        Wrong.apply(to_gt(X, True)).sum().backward()


# Checks


def test_gradcheck_finds_a_wrong_gradient() -> None:
    class Wrong(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2.01

    x = gt.tensor(X.astype(np.float64), requires_grad=True)
    with pytest.raises(gt.autograd.GradcheckError, match="output 0 by input 0"):
        gt.autograd.gradcheck(Wrong.apply, x)
    assert not gt.autograd.gradcheck(Wrong.apply, x, raise_exception=False)
    assert gt.autograd.gradcheck(lambda a, b: (a @ b.T, a.sum()), (x, x.detach() * 2))
    with pytest.raises(ValueError, match="float64"):
        gt.autograd.gradcheck(lambda a: a, to_gt(X, True))


def test_anomaly_mode_names_the_forward_line() -> None:
    x = gt.tensor([0.0, 1.0], requires_grad=True)
    with gt.autograd.detect_anomaly():
        y = (x * 0).sqrt() * 0  # the slope of a root at 0 is infinite
        with pytest.raises(RuntimeError, match=r"the slope of a root at 0") as wrong:
            y.sum().backward()
    assert "sqrt" in str(wrong.value) and "test_autograd.py" in str(wrong.value)
    ((x * 0).sqrt() * 0).sum().backward()
    with gt.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan"):
        ((x * 0).sqrt() * 0).sum().backward()


# Whole derivatives


def test_jacobians_and_hessians_are_pytorchs() -> None:
    def pair(x, y):
        return (x * y).sum(1), x.sin().sum() * y[0]

    def single(x, y):
        return ((x**3) * y).sum()

    a, b = gt.autograd.functional, torch.autograd.functional
    found, wanted = a.jacobian(pair, (to_gt(X), to_gt(Y))), b.jacobian(pair, (to_torch(X), to_torch(Y)))
    for row, other in zip(found, wanted):
        for p, q in zip(row, other):
            close(p, q)
    close(a.jacobian(lambda x: x.exp(), to_gt(X)), b.jacobian(lambda x: x.exp(), to_torch(X)))
    found, wanted = gt.autograd.hessian(single, (to_gt(X), to_gt(Y))), b.hessian(single, (to_torch(X), to_torch(Y)))
    for row, other in zip(found, wanted):
        for p, q in zip(row, other):
            close(p, q)
    close(a.hessian(lambda x: (x**3).sum(), to_gt(X)), b.hessian(lambda x: (x**3).sum(), to_torch(X)))


def test_functions_of_functions_are_pytorchs() -> None:
    def f(x, y):
        return (x * y).sin().sum()

    close(gt.func.grad(f)(to_gt(X), to_gt(Y)), torch.func.grad(f)(to_torch(X), to_torch(Y)))
    for a, b in zip(gt.func.grad(f, (0, 1))(to_gt(X), to_gt(Y)), torch.func.grad(f, (0, 1))(to_torch(X), to_torch(Y))):
        close(a, b)
    g, (value, aux) = gt.func.grad_and_value(lambda x: (x.sum(), 7), has_aux=True)(to_gt(X))
    assert aux == 7 and value.item() == pytest.approx(X.sum(), abs=1e-5) and not g.requires_grad and not value.requires_grad

    def twice(m):
        return m.func.grad(lambda x: m.func.grad(lambda z: (z**4).sum())(x).sum())

    close(twice(gt)(to_gt(X)), twice(torch)(to_torch(X)))
    y, pull = gt.func.vjp(lambda x, y: (x * y, x.sum()), to_gt(X), to_gt(Y))
    ty, tpull = torch.func.vjp(lambda x, y: (x * y, x.sum()), to_torch(X), to_torch(Y))
    close(y[0], ty[0])
    for a, b in zip(pull((to_gt(Y), gt.tensor(2.0))), tpull((to_torch(Y), torch.tensor(2.0)))):
        close(a, b)


def test_a_gradient_function_of_a_dict_leads_on_to_its_captured_tensors() -> None:
    w = to_gt(Y, True)
    g = gt.func.grad(lambda p: (p["a"] ** 2 * w).sum() + p["b"])({"a": to_gt(X), "b": gt.tensor(1.0)})
    assert g["b"].item() == 1 and g["a"].requires_grad
    g["a"].sum().backward()
    assert np.allclose(w.grad.numpy(), 2 * X, atol=1e-6)


# Checkpoints


def test_a_checkpoint_gives_the_same_gradients_and_keeps_less(cluster) -> None:
    def part(x, w):
        for _ in range(4):
            x = (x @ w).tanh()
        return x

    grads, held = [], []
    for run in (part, lambda x, w: gt.utils.checkpoint(part, x, w)):
        x, w = to_gt(X, True), to_gt(numbers(4, 4), True)
        y = run(x, w).sum()
        cluster.settle()
        held.append(len(cluster.workers[0].spaces["c0"].table))
        y.backward()
        grads.append((x.grad, w.grad))
        del x, w, y, run
    for a, b in zip(*grads):
        assert np.array_equal(a.numpy(), b.numpy())
    assert held[1] < held[0]


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    x = to_gt(numbers(50, 50), True)
    gt.manual_seed(3)
    y = gt.utils.checkpoint.checkpoint(lambda x: gt.nn.functional.dropout(x * x, 0.5), x, use_reentrant=False)
    later = gt.rand(3).tolist()
    kept = y.numpy() != 0
    y.sum().backward()
    assert np.array_equal(x.grad.numpy() != 0, kept)
    following = gt.rand(3).tolist()
    gt.manual_seed(3)
    F.dropout(x, 0.5)
    assert gt.rand(3).tolist() == later and gt.rand(3).tolist() == following


def test_checkpoints_nest_and_go_through_grad() -> None:
    x, w = to_gt(X, True), to_gt(numbers(4, 4), True)

    def inner(h):
        return (h @ w).tanh()

    def outer(h):
        return gt.utils.checkpoint(inner, inner(h)) * 2

    plain = gt.autograd.grad((inner(inner(x)) * 2).sum(), [x, w])
    found = gt.autograd.grad(gt.utils.checkpoint(outer, x).sum(), [x, w])
    for a, b in zip(found, plain):
        assert np.allclose(a.numpy(), b.numpy(), atol=1e-6)
    (g,) = gt.autograd.grad(gt.utils.checkpoint(outer, x).sum(), x, create_graph=True)
    (h,) = gt.autograd.grad((inner(inner(x)) * 2).sum(), x, create_graph=True)
    for a, b in zip(gt.autograd.grad(g.sum(), w), gt.autograd.grad(h.sum(), w)):
        assert np.allclose(a.numpy(), b.numpy(), atol=1e-5)


def test_a_checkpoint_that_changes_its_course_is_refused() -> None:
    calls = []

    def part(x):
        calls.append(1)
        return (x * 2).exp() if len(calls) == 1 else (x * 2).sin()

    with pytest.raises(RuntimeError, match="ran other ops"):
        gt.utils.checkpoint(part, to_gt(X, True)).sum().backward()


def test_a_chain_is_checkpointed_in_parts() -> None:
    model = gt.nn.Sequential(*[gt.nn.Sequential(gt.nn.Linear(4, 4), gt.nn.Tanh()) for _ in range(4)])
    grads = []
    for run in (model, lambda x: gt.utils.checkpoint.checkpoint_sequential(model, 2, x)):
        model.zero_grad()
        run(to_gt(X)).sum().backward()
        grads.append([p.grad.numpy() for p in model.parameters()])
    for a, b in zip(*grads):
        assert np.array_equal(a, b)


def test_grad_mode_is_set_and_put_back() -> None:
    x = to_gt(X, True)
    with gt.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    with gt.inference_mode():
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled() and (x * 2).requires_grad


def test_products_with_jacobians_and_hessians_are_pytorchs() -> None:
    def curve(t):
        return lambda x: (x**3).sum() * x[0] + (x[1:] * x[:-1]).sum()

    x, v = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 0.5, -2.0], np.float32)
    with gt.testing.cluster():
        for name in ("hvp", "vhp"):
            a = getattr(gt.autograd.functional, name)(curve(gt), gt.tensor(x), gt.tensor(v))
            b = getattr(torch.autograd.functional, name)(curve(torch), torch.tensor(x), torch.tensor(v))
            for p, q in zip(a, b):
                np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-5)
        pair = lambda x: (x * x, x.sum())  # noqa: E731
        a = gt.autograd.functional.jvp(pair, gt.tensor(x), gt.tensor(v))
        b = torch.autograd.functional.jvp(pair, torch.tensor(x), torch.tensor(v))
        c = gt.func.jvp(pair, (gt.tensor(x),), (gt.tensor(v),))
        for found in (a, c):
            for p, q in zip(found, b):
                for r, s in zip(p, q):
                    np.testing.assert_allclose(r.numpy(), s.numpy(), rtol=1e-5)


def test_functions_are_mapped_and_modules_called_with_other_parameters_as_in_pytorch() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with gt.testing.cluster():
        for t in (gt, torch):
            f = t.func.vmap(t.func.grad(lambda w, x: (w * x).sin().sum()), in_dims=(None, 1), out_dims=1)
            found = f(t.tensor([0.5, 2.0]), t.tensor(x))
            want = found.numpy() if t is gt else want  # noqa: F821
        np.testing.assert_allclose(want, found.numpy(), rtol=1e-5)
        layer = gt.nn.Sequential(gt.nn.Linear(3, 2))
        before = layer[0].weight
        y = gt.func.functional_call(layer, {"0.weight": gt.ones(2, 3), "0.bias": gt.zeros(2)}, (gt.tensor(x),))
        assert y.tolist() == [[3.0, 3.0], [12.0, 12.0]] and layer[0].weight is before
        with pytest.raises(KeyError, match="no '0.wieght'"):
            gt.func.functional_call(layer, {"0.wieght": gt.ones(2, 3)}, (gt.tensor(x),))
