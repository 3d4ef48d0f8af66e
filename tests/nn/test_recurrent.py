"""Recurrent layers as one instruction: states that require gradients, tensors saved for the backward pass, layers
with dropout between them, several workers, gradients of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.here import here
from gt.client.native import last_id
from gt.ops.recurrent import states
from gt.ops.recurrent_steps import GATES
from gt.ops.table import TABLE, infer
from gt.small import NATIVE
from gt.spec import Spec, float32
from gt.worker.engine.choose import make
from gt.worker.engine.torch import recurrent, small_recurrent
from tests.nn.compare import ENGINES, close, numbers, random_state, to_gt, to_torch

STACKS = [("LSTM", {"proj_size": 2}, 2), ("GRU", {"bidirectional": True}, 1), ("RNN", {"num_layers": 2}, 1)]


def states_of(name: str, keywords: dict, batch: int) -> list[np.ndarray]:
    n = keywords.get("num_layers", 1) * (2 if keywords.get("bidirectional") else 1)
    widths = [keywords.get("proj_size") or 3, 3] if name == "LSTM" else [3]
    return [numbers(n, batch, w, seed=w) for w in widths]


def stepped(lib: Any, module: Any, x: Any, states: list[Any], lengths: list[int] | None) -> list[Any]:
    """Outputs, ends and all gradients, those of the states to begin with among them."""
    rnn = lib.nn.utils.rnn
    given = x if lengths is None else rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, last = module(given, tuple(states) if len(states) > 1 else states[0])
    y, ends = y if lengths is None else y.data, last if isinstance(last, tuple) else (last,)
    (y.square().sum() + sum((h * 0.3).sum() for h in ends)).backward()
    return [y, *ends, x.grad, *(s.grad for s in states), *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lengths", [None, [2, 4, 1]], ids=["equal", "packed"])
def test_gradients_reach_the_states_to_begin_with(engine: str, lengths: list[int] | None) -> None:
    with gt.testing.cluster(1, engine):
        for name, keywords, _ in STACKS:
            own, theirs = (getattr(lib.nn, name)(2, 3, **keywords) for lib in (gt, torch))
            own.load_state_dict(random_state(theirs))
            x, states = numbers(4, 3, 2), states_of(name, keywords, 3)
            with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):  # which warns of projections
                want = stepped(torch, theirs, to_torch(x, True), [to_torch(s, True) for s in states], lengths)
            found = stepped(gt, own, to_gt(x, True), [to_gt(s, True) for s in states], lengths)
            for i, (a, b) in enumerate(zip(found, want)):
                close(a, b, f"{name} part {i}", 1e-4, 1e-5)


@pytest.mark.parametrize("form", ["_recorded", "_onednn", "forward"])
def test_a_backward_pass_reads_tensors_that_the_forward_pass_saved(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "_onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("needs PyTorch with oneDNN")
    if form == "forward" and NATIVE is None:
        pytest.skip("needs the part in C")
    calls, place = [], small_recurrent if form == "forward" else recurrent
    real = getattr(place, form)
    monkeypatch.setattr(place, form, lambda *args: calls.append(args) or real(*args))
    if form != "forward":
        monkeypatch.setattr(small_recurrent, "takes", lambda *args: False)
    with gt.testing.cluster(1, "pytorch"):
        module, x = gt.nn.LSTM(2, 3, 2, bidirectional=form == "_recorded"), gt.tensor(numbers(4, 3, 2), requires_grad=True)
        y = module(x)[0].square().sum()
        y.backward(retain_graph=True)
        first = x.grad.numpy().copy()
        assert len(calls) == 1
        y.backward()  # the saved tensors are used up: the forward pass runs again
        np.testing.assert_allclose(x.grad.numpy(), 2 * first, rtol=1e-6)
        assert len(calls) == 2
        with gt.no_grad():
            module(x)[0].sum().item()
        assert len(calls) == (3 if form == "forward" else 2)  # the others save nothing then, by another function


def step_of(mode: str, layers: int, ways: int = 1, bias: bool = True, batch_first: bool = False) -> list[torch.Tensor]:
    """Results and gradients of a recurrent row in PyTorch's engine, its results overwritten before the gradient."""
    generator = torch.Generator().manual_seed(layers)
    x = torch.randn((4, 3, 5) if batch_first else (3, 4, 5), generator=generator)
    x = x.transpose(0, 1) if batch_first else x  # (steps, batch, inputs)
    begin = [torch.randn((layers * ways, x.shape[1], 6), generator=generator) for _ in range(states(mode))]
    rows, widths = 6 * GATES[mode], [5 if n < ways else 6 * ways for n in range(layers * ways)]
    shapes = [s for w in widths for s in ((rows, w), (rows, 6), *[(rows,)] * (2 * bias))]
    weights = [0.3 * torch.randn(s, generator=generator) for s in shapes]  # or values without bounds grow with each step
    settings: dict[str, Any] = {"mode": mode, "layers": layers, "ways": ways, "bias": bias, "sizes": (), "saves": True}
    *made, saved = recurrent.recurrent(x, *begin, *weights, **settings)
    found = [t.clone() for t in made]
    given = [torch.randn(t.shape, generator=generator) for t in made]
    for t in made:
        t.zero_()
    return found + list(recurrent.recurrent_grad(*given, saved, x, *begin, *weights, **settings))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_onednns_layers_give_the_bits_of_pytorchs_autograd(
    layers: int, batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("needs PyTorch with oneDNN")
    monkeypatch.setattr(small_recurrent, "takes", lambda *args: False)
    with torch.inference_mode():
        ours = step_of("LSTM", layers, batch_first=batch_first)
        monkeypatch.setattr(recurrent, "_onednn_takes", lambda *args: False)
        theirs = step_of("LSTM", layers, batch_first=batch_first)
    assert len(ours) == len(theirs) == 6 + 4 * layers
    for a, b in zip(ours, theirs):
        assert a.shape == b.shape and torch.equal(a, b)


@pytest.mark.skipif(NATIVE is None, reason="needs the part in C")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("mode", GATES)
def test_layers_in_c_give_pytorchs_numbers(
    mode: str, layers: int, ways: int, bias: bool, batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    forward = small_recurrent.forward
    monkeypatch.setattr(small_recurrent, "forward", lambda *args: calls.append(args) or forward(*args))
    with torch.inference_mode():
        ours = step_of(mode, layers, ways, bias, batch_first)
        monkeypatch.setattr(small_recurrent, "takes", lambda *args: False)
        theirs = step_of(mode, layers, ways, bias, batch_first)
    each = layers * ways * (4 if bias else 2)
    assert len(calls) == 1 and len(ours) == len(theirs) == 2 * (1 + states(mode)) + each
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(NATIVE is None, reason="needs the part in C")
@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
@pytest.mark.parametrize("ways", [1, 2])
def test_long_small_layers_have_the_gradients_of_their_doubles(mode: str, ways: int) -> None:
    """Of more steps than a product has terms in one go."""
    draw = torch.Generator().manual_seed(0)
    x, rows = torch.randn(300, 3, 5, generator=draw), 7 * GATES[mode]
    begin = [torch.randn(ways, 3, 7, generator=draw) for _ in range(states(mode))]
    weights = [0.5 * torch.randn(s, generator=draw) for _ in range(ways) for s in ((rows, 5), (rows, 7), (rows,), (rows,))]
    assert small_recurrent.takes(x, begin, weights, mode, ways, True, ())
    made, runs = small_recurrent.forward(x, begin, weights, mode, ways, True)
    found = small_recurrent.backward(torch.ones_like(made[0]), [torch.ones_like(t) for t in made[1:]], runs, ways)
    leaves = [t.double().requires_grad_() for t in (x, *begin, *weights)]
    n = 1 + states(mode)
    with torch.enable_grad():
        want = recurrent._aten(leaves[0], leaves[1:n], leaves[n:], mode, 1, ways, True, ())
    torch.testing.assert_close(made, tuple(t.float() for t in want), rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(sum(t.sum() for t in want), leaves)
    for a, b in zip(found, gradients):
        torch.testing.assert_close(a, b.float(), rtol=2e-5, atol=2e-4)


@pytest.mark.skipif(NATIVE is None, reason="needs the part in C")
def test_wide_layers_are_the_librarys() -> None:
    def taken(mode: str, batch: int, hidden: int) -> bool:
        rows = GATES[mode] * hidden
        weights = [torch.empty(s) for s in ((rows, hidden), (rows, hidden), (rows,), (rows,))]
        return small_recurrent.takes(torch.empty(2, batch, hidden), [], weights, mode, 1, True, ())

    assert [taken("LSTM", 8, n) for n in (32, 64)] == [True, False]
    assert [taken("GRU", 8, n) for n in (64, 200)] == [True, False]
    assert [taken("LSTM", n, 64) for n in (1, 4, 5)] == [True, True, False]  # four rows at a time


def test_a_whole_stack_of_layers_is_one_instruction() -> None:
    with gt.testing.cluster(1, "numpy"):
        module, x = gt.nn.GRU(2, 3, 3, bidirectional=True), gt.tensor(numbers(4, 3, 2))
        before = last_id(here().session)
        module(x)
        assert last_id(here().session) - before == 4  # a state of zeros, outputs, ends, saved tensors


def test_dropout_falls_between_layers_in_training_only() -> None:
    with gt.testing.cluster(1, "pytorch"):
        own, theirs = (lib.nn.LSTM(2, 3, 2, dropout=0.5, bidirectional=True) for lib in (gt, torch))
        own.load_state_dict(random_state(theirs))
        x = numbers(4, 3, 2)
        own.eval(), theirs.eval()
        close(own(to_gt(x))[0], theirs(to_torch(x))[0], "eval", 1e-4, 1e-5)
        whole = own(to_gt(x))
        own.train()
        y, (h, c) = own(to_gt(x, True))
        assert h.shape == c.shape == (4, 3, 3)
        ends = whole[1][0].numpy()
        np.testing.assert_allclose(h.numpy()[:2], ends[:2], 1e-5, 1e-6)  # the first layer sees no dropout
        assert np.abs(h.numpy()[2:] - ends[2:]).max() > 1e-3
        y.sum().backward()
        assert all(p.grad is not None for p in own.parameters())
        own.dropout = 1e-9
        np.testing.assert_allclose(own(to_gt(x))[0].numpy(), whole[0].numpy(), 1e-5, 1e-6)  # layer by layer


def test_sequences_on_several_workers_give_the_same() -> None:
    x, want = numbers(4, 6, 2), None
    for workers in (1, 3):
        with gt.testing.cluster(workers, "pytorch"):
            gt.register_config("cut", gt.SignalConfig(shard=gt.ShardConfig(axis=1)))
            module = gt.nn.LSTM(2, 3)
            module.load_state_dict(random_state(torch.nn.LSTM(2, 3)))
            with gt.signal.context("cut"):
                t = gt.tensor(x, requires_grad=True)
                y = module(t)[0]
            y.square().sum().backward()
            found = [a.numpy() for a in (y, t.grad, *(p.grad for p in module.parameters()))]
        want = want or found
        for a, b in zip(found, want):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_a_gradient_is_pytorchs() -> None:
    with gt.testing.cluster(1, "pytorch"):
        own, theirs = gt.nn.GRU(2, 3), torch.nn.GRU(2, 3)
        own.load_state_dict(random_state(theirs))
        found = []
        for lib, module, x in ((gt, own, to_gt(numbers(3, 2, 2), True)), (torch, theirs, to_torch(numbers(3, 2, 2), True))):
            (g,) = lib.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
            g.square().sum().backward()
            found.append([x.grad, *(p.grad for p in module.parameters())])
        for a, b in zip(*found):
            close(a, b, "", 1e-3, 1e-4)


def test_wrong_shapes_are_refused_on_the_users_line() -> None:
    with gt.testing.cluster(1, "numpy"):
        module = gt.nn.LSTM(2, 3)
        with pytest.raises(RuntimeError, match="length 1 or more"):
            module(gt.zeros(0, 2, 2))
        with pytest.raises(RuntimeError, match="one floating-point dtype"):
            module(gt.zeros(2, 2, 2, dtype=gt.float64))
    with pytest.raises(RuntimeError, match="no recurrent layer 'LTSM'"):
        specs = tuple(Spec(s, float32) for s in ((2, 2, 2), (1, 2, 3)))
        infer(TABLE["recurrent"], specs, ("LTSM", 1, 1, True, (), False))


def test_a_batch_of_none_gives_none() -> None:
    kinds = infer(TABLE["recurrent"], tuple(Spec(s, float32) for s in ((2, 0, 2), (1, 0, 3), (3, 2), (3, 3))),
                  ("RNN_TANH", 1, 1, False, (), True))  # fmt: skip
    engine = make("pytorch")
    made = engine.kernel(kinds)(*(torch.zeros(s.shape) for s in kinds.ins))
    assert [tuple(m.shape) for m in made] == [(2, 0, 3), (1, 0, 3), ()]
