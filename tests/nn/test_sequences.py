"""Recurrent networks over sequences of unequal length, decoders, and CTC, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.ops import TABLE, infer
from gt.spec import Spec
from gt.testing.samples import CLOSE
from gt.worker.engine.choose import make
from gt.worker.engine.torch.dtypes import TORCH
from tests.nn.compare import ENGINES, close, compare_modules, numbers, random_state, to_gt, to_torch

F, T = gt.nn.functional, torch.nn.functional
SEQ = numbers(3, 5, 4)
LENGTHS = [3, 5, 1]


@pytest.mark.parametrize("name, keywords", [("LSTM", {"bidirectional": True, "num_layers": 2}), ("GRU", {}), ("RNN", {})])
@pytest.mark.parametrize("sorted_", [True, False])
def test_packed_sequences_are_pytorchs(name: str, keywords: dict, sorted_: bool) -> None:
    lengths = sorted(LENGTHS, reverse=True) if sorted_ else LENGTHS
    with gt.testing.cluster(1, "pytorch"):
        own, theirs = getattr(gt.nn, name)(4, 3, **keywords), getattr(torch.nn, name)(4, 3, **keywords)
        own.load_state_dict(random_state(theirs))
        found = []
        for rnn, module, x in ((gt.nn.utils.rnn, own, to_gt(SEQ, True)), (torch.nn.utils.rnn, theirs, to_torch(SEQ, True))):
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sorted_)
            y, state = module(packed)
            padded, sizes = rnn.pad_packed_sequence(y, batch_first=True, padding_value=-1.0, total_length=6)
            states: Any = state if isinstance(state, tuple) else (state,)
            (padded.square().sum() + sum((h * 0.3).sum() for h in states)).backward()
            found.append((padded, sizes, y.data, y.batch_sizes, *states, x.grad, *(p.grad for p in module.parameters())))
        for i, (a, b) in enumerate(zip(*found)):
            close(a, b, f"part {i}", 1e-4, 1e-5)


def test_sequences_are_padded_and_packed_as_pytorch_does() -> None:
    with gt.testing.cluster():
        parts = [numbers(n, 2, seed=n) for n in (4, 2, 3)]
        ours, theirs = [to_gt(p) for p in parts], [to_torch(p) for p in parts]
        ours_rnn, theirs_rnn = gt.nn.utils.rnn, torch.nn.utils.rnn
        for settings in ({}, {"batch_first": True, "padding_value": 2.0}, {"padding_side": "left"}):
            close(ours_rnn.pad_sequence(ours, **settings), theirs_rnn.pad_sequence(theirs, **settings))
        a, b = ours_rnn.pack_sequence(ours, enforce_sorted=False), theirs_rnn.pack_sequence(theirs, enforce_sorted=False)
        for p, q in zip(a, b):
            close(p, q)
        with pytest.raises(RuntimeError, match="decreasing lengths"):
            ours_rnn.pack_sequence(ours)


DECODERS = [{}, {"norm_first": True, "batch_first": True}, {"activation": "gelu", "bias": False}]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keywords", DECODERS, ids=str)
def test_a_decoder_layer_is_pytorchs(engine: str, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        own = gt.nn.TransformerDecoderLayer(8, 2, 16, 0.0, **keywords)
        theirs = torch.nn.TransformerDecoderLayer(8, 2, 16, 0.0, **keywords)
        compare_modules(own, theirs, (numbers(4, 3, 8), numbers(4, 3, 8, seed=2)), 1e-4, 1e-5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_transformer_is_pytorchs() -> None:
    with gt.testing.cluster(1, "pytorch"):
        make = dict(d_model=8, nhead=2, num_encoder_layers=1, num_decoder_layers=2, dim_feedforward=16, dropout=0.0)
        own, theirs = gt.nn.Transformer(**make), torch.nn.Transformer(**make)
        own.load_state_dict(random_state(theirs))
        src, tgt = numbers(5, 2, 8), numbers(4, 2, 8)
        hidden = np.array([[False] * 5, [False] * 3 + [True] * 2])
        outs = []
        for module, to in ((own, to_gt), (theirs, to_torch)):
            mask = module.generate_square_subsequent_mask(4)
            outs.append(module(to(src), to(tgt), tgt_mask=mask, src_key_padding_mask=to(hidden),
                               memory_key_padding_mask=to(hidden)))  # fmt: skip
        close(*outs, "transformer", 1e-4, 1e-5)
        assert list(own.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [True, False])
def test_ctc_is_pytorchs(engine: str, reduction: str, rows: bool) -> None:
    scores = numbers(7, 3, 5)
    words = np.array([[1, 2, 2], [3, 1, 0], [4, 4, 4]])
    sizes, steps = [3, 2, 1], [7, 6, 4]
    targets = words if rows else np.concatenate([w[:n] for w, n in zip(words, sizes)])
    with gt.testing.cluster(1, engine):
        x, y = to_gt(scores, True), to_torch(scores, True)
        a = F.ctc_loss(F.log_softmax(x, 2), to_gt(targets), steps, sizes, reduction=reduction)
        b = T.ctc_loss(T.log_softmax(y, 2), to_torch(targets), steps, sizes, reduction=reduction)
        close(a, b, "loss", 1e-4)
        a.sum().backward()
        b.sum().backward()
        close(x.grad, y.grad, "gradient", 1e-3, 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_of_impossible_targets_is_pytorchs(engine: str, zero_infinity: bool) -> None:
    """The first has no alignment, the second no words, the third no steps."""
    scores, words = numbers(2, 4, 3), np.array([[1, 1], [-1, 7], [2, 1], [2, 2]])
    steps, sizes = [2, 2, 0, 2], [2, 0, 1, 1]
    with gt.testing.cluster(1, engine):
        x, y = to_gt(scores, True), to_torch(scores, True)
        a = gt.nn.CTCLoss(reduction="none", zero_infinity=zero_infinity)(F.log_softmax(x, 2), to_gt(words), steps, sizes)
        known = to_torch(np.where(words == 7, 0, words))  # PyTorch reads the padding
        b = T.ctc_loss(T.log_softmax(y, 2), known, steps, sizes, reduction="none", zero_infinity=zero_infinity)
        close(a, b, "loss", 1e-5)
        assert np.isinf(b.detach().numpy()).sum() == (0 if zero_infinity else 2)
        a[1:].sum().backward()
        b[1:].sum().backward()
        close(x.grad, y.grad, "gradient", 1e-5)


def test_lengths_that_are_tensors_are_not_read() -> None:
    with gt.testing.cluster(1, "pytorch") as made:
        x, words = F.log_softmax(to_gt(numbers(9, 2, 4), True), 2), gt.tensor([[1, 2], [3, 3]])
        steps, sizes = gt.tensor([9, 8], dtype=gt.int32), gt.tensor([2, 2], dtype=gt.int32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(made.sessions[0]), "_read", None)
            loss = F.ctc_loss(x, words, steps, sizes)
            loss.backward()
        assert np.isclose(loss.item(), F.ctc_loss(x, words, [9, 8], [2, 2]).item())
        done = made.workers[0].stats()["ops"]
        assert (done["ctc"], done["ctc_grad"]) == (2, 1) and sum(done.values()) < 40


@pytest.mark.parametrize(
    ("words", "steps", "sizes", "error"),
    [([[1, 4]], [5], [2], "targets of 1 to 4 are out of range: expected 0 to 3"), ([[1, -1]], [5], [2], "targets of -1 to 1"),
     ([[1, 2]], [6], [2], "input lengths of 6 to 6 are out of range"), ([[1, 2]], [5], [3], "target lengths of 3 to 3 are")],
)  # fmt: skip
def test_ctc_reads_and_writes_within_its_operands(words: list, steps: list, sizes: list, error: str) -> None:
    with gt.testing.cluster(1, "pytorch"):
        x = F.log_softmax(to_gt(numbers(5, 1, 4)), 2)
        with pytest.raises(IndexError, match=error):
            F.ctc_loss(x, gt.tensor(words), gt.tensor(steps), gt.tensor(sizes)).item()
        if "lengths" in error:
            with pytest.raises(ValueError, match="expected (input|target) lengths"):
                F.ctc_loss(x, gt.tensor(words), steps, sizes)


@pytest.mark.parametrize("dtype", [gt.float32, gt.float64, gt.float16, gt.bfloat16])
def test_the_kernels_of_ctc_agree(dtype: Any) -> None:
    """PyTorch's for CPUs, and the row's, which runs on GPUs, step by step."""
    engine = make("pytorch")
    specs = Spec((6, 3, 5), dtype), Spec((3, 4), gt.int64), Spec((3,), gt.int64), Spec((3,), gt.int64)
    kind = infer(TABLE["ctc"], specs, (4, False, True))
    back = infer(TABLE["ctc_grad"], (kind.outs[0], kind.outs[1], *specs), kind.statics)
    p = torch.log_softmax(to_torch(numbers(6, 3, 5)), 2).to(TORCH[dtype])
    rest = [torch.tensor(x) for x in ([[1, 2, 2, 3], [0, 1, 3, 3], [2, 0, 0, 0]], [6, 6, 3], [3, 2, 1])]
    g = torch.tensor([1.0, 2.0, -1.0]).to(p.dtype)
    with torch.inference_mode():
        loss, alpha = engine.kernel(kind)(p, *rest)
        other, reached = (t.to(TORCH[s.dtype]) for t, s in zip(engine.generic(kind)(p.to(alpha.dtype), *rest), kind.outs))
        assert (loss.dtype, alpha.dtype) == (other.dtype, reached.dtype) == tuple(TORCH[s.dtype] for s in kind.outs)
        close = dict(zip(("rtol", "atol"), CLOSE[dtype]))
        torch.testing.assert_close(loss, other, **close)
        torch.testing.assert_close(alpha, reached, **close)
        found = engine.kernel(back)(g, alpha, p, *rest)
        same = engine.generic(back)(g.to(alpha.dtype), alpha, p.to(alpha.dtype), *rest).to(p.dtype)
        torch.testing.assert_close(found, same, **close)


@pytest.mark.parametrize("name", ["Dropout3d", "AlphaDropout", "RReLU"])
def test_random_modules_keep_their_mean_and_rest_when_not_training(name: str) -> None:
    with gt.testing.cluster(1, "pytorch"):
        gt.manual_seed(0)
        module = getattr(gt.nn, name)()
        theirs = getattr(torch.nn, name)()
        x = numbers(8, 20, 3, 4, 5)
        torch.manual_seed(0)
        a, b = module(to_gt(x)).numpy(), theirs(to_torch(x)).numpy()
        assert abs(a.mean() - b.mean()) < 0.05 and abs(a.std() - b.std()) < 0.1
        close(module.eval()(to_gt(x)), theirs.eval()(to_torch(x)))


def test_gumbel_softmax_chooses_by_weight() -> None:
    with gt.testing.cluster(1, "pytorch"):
        gt.manual_seed(1)
        logits = gt.tensor(np.log([[0.1, 0.6, 0.3]]), dtype=gt.float32).expand(4000, 3).clone().requires_grad_()
        hard = F.gumbel_softmax(logits, hard=True)
        assert set(np.unique(hard.detach().numpy().round(5))) == {0.0, 1.0}
        np.testing.assert_allclose(hard.detach().numpy().mean(0), [0.1, 0.6, 0.3], atol=0.03)
        (hard * gt.tensor([1.0, 2.0, 3.0])).sum().backward()
        assert np.abs(logits.grad.numpy()).sum() > 0
