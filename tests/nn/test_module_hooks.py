"""Hooks of modules and optimizers see and change the same values as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import numbers

X, W = numbers(3, 4), numbers(2, 4, seed=1)


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def same(script: Any) -> None:
    """A script gives equal numbers with either module."""
    own, theirs = script(gt), script(torch)
    assert len(own) == len(theirs) > 0
    for a, b in zip(own, theirs):
        if a is None or isinstance(a, (str, bool, list)):
            assert a == b
        else:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def layer(m: Any) -> Any:
    made = m.nn.Linear(4, 2, bias=False)
    made.load_state_dict({"weight": m.tensor(W)})
    return made


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("wants", [True, False], ids=["input with gradient", "input without"])
def test_gradients_of_inputs_and_results_come_to_backward_hooks(wants: bool) -> None:
    def script(m: Any) -> list:
        seen: list = []
        model = layer(m)

        def note(module: Any, grad_input: tuple, grad_output: tuple) -> Any:
            seen.extend([len(grad_input), *(None if g is None else g.detach().numpy() for g in (*grad_input, *grad_output))])
            return tuple(None if g is None else g * 2 for g in grad_input) if wants else None

        handle = model.register_full_backward_hook(note)
        model.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 3,))
        x = m.tensor(X, requires_grad=wants)
        model(x).pow(2).sum().backward()
        handle.remove()
        (model(x).sum() * 0.5).backward()
        return [*seen, model.weight.grad.numpy(), x.grad.numpy() if wants else None]

    same(script)


def test_backward_hooks_of_a_module_of_several_inputs_and_results() -> None:
    def script(m: Any) -> list:
        seen: list = []

        class Pair(m.nn.Module):
            def forward(self, a, n, b):
                return a * b * n, (a + b).tanh()

        model = Pair()
        model.register_full_backward_hook(lambda _, i, o: seen.extend(None if g is None else g.numpy() for g in (*i, *o)))
        a, b = m.tensor(X, requires_grad=True), m.tensor(X * 0.5)
        first, second = model(a, 2.0, b)
        (first.sum() + second.pow(2).sum()).backward()
        return [*seen, a.grad.numpy(), first.requires_grad]

    same(script)


def test_forward_hooks_with_keywords_and_in_order() -> None:
    def script(m: Any) -> list:
        order: list = []

        class Scaled(m.nn.Module):
            def forward(self, x, scale=1.0):
                return x * scale

        model = Scaled()
        model.register_forward_hook(lambda mod, args, y: order.append("second") or y + 1)
        model.register_forward_hook(lambda mod, args, y: order.append("first"), prepend=True)
        model.register_forward_pre_hook(lambda mod, args, kwargs: (args, {"scale": kwargs["scale"] * 2}), with_kwargs=True)
        model.register_forward_hook(lambda mod, args, kwargs, y: y * kwargs["scale"], with_kwargs=True)
        return [model(m.tensor(X), scale=3.0).numpy(), order]

    same(script)


def test_hooks_of_state_change_the_saved_and_the_loaded_state() -> None:
    def script(m: Any) -> list:
        class Counted(m.nn.Linear):
            seen = 5

            def get_extra_state(self):
                return {"seen": self.seen}

            def set_extra_state(self, state):
                self.seen = state["seen"] + 1

        model = m.nn.Sequential(Counted(4, 2), m.nn.ReLU())
        state = model.state_dict()
        old = {k.replace("0.", "0.old."): v for k, v in state.items()}

        def rename(module: Any, given: dict, prefix: str, *rest: Any) -> None:
            for key in [k for k in given if k.startswith(prefix + "old.")]:
                given[prefix + key[len(prefix) + 4 :]] = given.pop(key)

        model[0].register_load_state_dict_pre_hook(rename)
        loaded: list = []
        model.register_load_state_dict_post_hook(lambda module, keys: loaded.append(len(keys.missing_keys)))
        model.load_state_dict(old)
        again = model.state_dict(prefix="net.", keep_vars=True)
        return [list(state), model[0].seen, loaded, list(again), again["net.0.weight"].requires_grad]

    same(script)


def test_hooks_of_optimizers_and_a_users_own_optimizer() -> None:
    def script(m: Any) -> list:
        class Own(m.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @m.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        state = self.state[p]
                        if len(state) == 0:
                            state["mean"] = m.zeros_like(p)
                        state["mean"].mul_(0.5).add_(p.grad)
                        p.add_(state["mean"], alpha=-group["lr"])

        found: list = []
        for kind in (Own, m.optim.SGD):
            model, order = layer(m), []
            optimizer = kind(model.parameters(), lr=0.1)
            optimizer.register_step_pre_hook(lambda o, args, kwargs, order=order: order.append("before"))
            optimizer.register_step_post_hook(lambda o, args, kwargs, order=order: order.append("after"))
            optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
            for _ in range(3):
                optimizer.zero_grad()
                model(m.tensor(X)).pow(2).sum().backward()
                optimizer.step()
            found += [order, model.weight.detach().numpy(), optimizer.state_dict()["more"]]
        return found

    same(script)
