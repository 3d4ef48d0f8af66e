"""Every module against PyTorch's: outputs, gradients, state and its names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, compare_modules, numbers

pytestmark = [pytest.mark.filterwarnings("ignore:Using padding=.same"), pytest.mark.filterwarnings("ignore:LSTM with proj")]

X = numbers(4, 6)
SEQ = numbers(2, 5, 8)
IMG = numbers(2, 4, 7, 6)
LINE = numbers(2, 4, 9)
VOLUME = numbers(2, 2, 3, 4, 3)
IDS = np.array([[0, 2, 1], [4, 2, 2]])

# (class, arguments, keywords, inputs)
CASES: list[tuple[str, tuple, dict, tuple]] = [
    ("Identity", (), {}, (X,)),
    ("Linear", (6, 3), {}, (X,)),
    ("Linear", (6, 3), {"bias": False}, (numbers(2, 3, 6),)),
    ("Linear", (6, 3), {}, (numbers(6),)),
    ("Flatten", (), {}, (IMG,)),
    ("Flatten", (0, 2), {}, (IMG,)),
    ("Unflatten", (1, (2, 3)), {}, (X,)),
    ("Embedding", (5, 3), {}, (IDS,)),
    ("Embedding", (5, 3), {"padding_idx": 2}, (IDS,)),
    ("Embedding", (5, 3), {"padding_idx": -1}, (IDS,)),
    ("Conv1d", (4, 6, 3), {}, (LINE,)),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False}, (LINE,)),
    ("Conv1d", (4, 6, 4), {"padding": "same"}, (LINE,)),
    ("Conv1d", (4, 6, 3), {"padding": 2, "padding_mode": "circular"}, (LINE,)),
    ("Conv1d", (4, 6, 3), {"padding": "valid"}, (LINE[0],)),
    ("Conv2d", (4, 6, 3), {}, (IMG,)),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}, (IMG,)),
    ("Conv2d", (4, 4, 3), {"padding": 1, "groups": 4, "bias": False}, (IMG,)),
    ("Conv2d", (4, 6, 3), {"padding": "same", "dilation": (1, 2)}, (IMG,)),
    ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "reflect"}, (IMG,)),
    ("Conv2d", (4, 6, (2, 3)), {"padding": "same", "padding_mode": "replicate"}, (IMG,)),
    ("Conv3d", (2, 3, 2), {"padding": 1}, (VOLUME,)),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (LINE,)),
    ("ConvTranspose2d", (4, 6, 3), {}, (IMG,)),
    ("ConvTranspose2d", (4, 6, (3, 2)), {"stride": 2, "padding": 1, "output_padding": (1, 0), "groups": 2}, (IMG,)),
    ("ConvTranspose2d", (4, 2, 3), {"dilation": 2, "bias": False}, (IMG[0],)),
    ("MaxPool1d", (3,), {}, (LINE,)),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1, "return_indices": True}, (LINE,)),
    ("MaxPool2d", (2,), {}, (IMG,)),
    ("MaxPool2d", ((3, 2),), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "ceil_mode": True}, (IMG,)),
    ("AvgPool1d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, (LINE,)),
    ("AvgPool2d", (2,), {}, (IMG,)),
    ("AvgPool2d", ((3, 2),), {"stride": (2, 1), "padding": (1, 0), "ceil_mode": True}, (IMG,)),
    ("AvgPool2d", (2,), {"divisor_override": 3}, (IMG[0],)),
    ("AdaptiveAvgPool1d", (4,), {}, (LINE,)),
    ("AdaptiveAvgPool2d", (1,), {}, (IMG,)),
    ("AdaptiveAvgPool2d", ((3, None),), {}, (IMG,)),
    ("LayerNorm", (8,), {}, (SEQ,)),
    ("LayerNorm", ((5, 8),), {"eps": 1e-3}, (SEQ,)),
    ("LayerNorm", (8,), {"bias": False}, (SEQ,)),
    ("LayerNorm", (8,), {"elementwise_affine": False}, (SEQ,)),
    ("RMSNorm", (8,), {}, (SEQ,)),
    ("RMSNorm", ((5, 8),), {"eps": 1e-3, "elementwise_affine": False}, (SEQ,)),
    ("GroupNorm", (2, 4), {}, (IMG,)),
    ("GroupNorm", (4, 4), {"affine": False}, (LINE,)),
    ("BatchNorm1d", (6,), {}, (X,)),
    ("BatchNorm1d", (4,), {"momentum": 0.3, "eps": 1e-3}, (LINE,)),
    ("BatchNorm2d", (4,), {}, (IMG,)),
    ("BatchNorm2d", (4,), {"affine": False}, (IMG,)),
    ("BatchNorm2d", (4,), {"momentum": None}, (IMG,)),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, (IMG,)),
    ("BatchNorm3d", (2,), {}, (VOLUME,)),
    ("Dropout", (0.0,), {}, (X,)),
    ("LPPool3d", (2.0, 2), {"stride": 1}, (np.abs(VOLUME) + 0.1,)),
    ("ReLU", (), {}, (X,)),
    ("ReLU6", (), {}, (X * 4,)),
    ("LeakyReLU", (0.2,), {}, (X,)),
    ("ELU", (), {"alpha": 0.7}, (X,)),
    ("SELU", (), {}, (X,)),
    ("CELU", (0.7,), {}, (X,)),
    ("GELU", (), {}, (X,)),
    ("GELU", ("tanh",), {}, (X,)),
    ("SiLU", (), {}, (X,)),
    ("Mish", (), {}, (X,)),
    ("Sigmoid", (), {}, (X,)),
    ("LogSigmoid", (), {}, (X * 30,)),
    ("Tanh", (), {}, (X,)),
    ("Tanhshrink", (), {}, (X + 2,)),
    ("Softplus", (2.0, 3.0), {}, (X * 3,)),
    ("Softsign", (), {}, (X,)),
    ("Hardtanh", (-0.5, 0.8), {}, (X,)),
    ("Hardsigmoid", (), {}, (X * 4,)),
    ("Hardswish", (), {}, (X * 4,)),
    ("Softmax", (), {"dim": 1}, (IMG,)),
    ("Softmin", (), {"dim": -1}, (X,)),
    ("LogSoftmax", (0,), {}, (X,)),
    ("GLU", (1,), {}, (IMG,)),
    ("PReLU", (), {}, (X,)),
    ("PReLU", (4,), {"init": 0.1}, (IMG,)),
    ("Hardshrink", (0.3,), {}, (X,)),
    ("Softshrink", (), {}, (X,)),
    ("Threshold", (0.1, 2.0), {}, (X,)),
    ("Softmax2d", (), {}, (IMG,)),
    ("Bilinear", (6, 5, 3), {}, (X, numbers(4, 5))),
    ("Embedding", (5, 3), {"max_norm": 0.6}, (IDS,)),
    ("Embedding", (5, 3), {"max_norm": 0.9, "norm_type": 1.0, "padding_idx": 2}, (IDS,)),
    ("Embedding", (5, 3), {"scale_grad_by_freq": True}, (IDS,)),
    ("Embedding", (5, 3), {"scale_grad_by_freq": True, "padding_idx": 2, "max_norm": 0.6}, (IDS,)),
    ("EmbeddingBag", (5, 3), {}, (IDS,)),
    ("EmbeddingBag", (5, 3), {"mode": "max", "padding_idx": 2}, (IDS,)),
    ("EmbeddingBag", (5, 3), {"mode": "sum", "padding_idx": 0}, (IDS.reshape(-1), np.array([0, 2, 2, 5]))),
    ("EmbeddingBag", (5, 3), {"include_last_offset": True}, (IDS.reshape(-1), np.array([0, 2, 2, 6]))),
    ("ConvTranspose3d", (2, 3, 2), {"stride": 2, "output_padding": 1}, (VOLUME,)),
    ("Unfold", ((2, 3),), {"padding": (0, 1), "stride": 2, "dilation": (2, 1)}, (IMG,)),
    ("Fold", ((5, 6), (2, 3)), {"padding": 1, "stride": (1, 2), "dilation": (2, 1)}, (numbers(2, 24, 15),)),
    ("MaxPool3d", (2,), {"stride": 1, "padding": 1}, (VOLUME,)),
    ("AvgPool3d", (2,), {"padding": 1, "count_include_pad": False, "ceil_mode": True}, (VOLUME,)),
    ("AdaptiveAvgPool3d", ((2, None, 2),), {}, (VOLUME,)),
    ("AdaptiveMaxPool1d", (4,), {}, (LINE,)),
    ("AdaptiveMaxPool2d", ((3, None),), {"return_indices": True}, (IMG,)),
    ("AdaptiveMaxPool3d", (2,), {}, (VOLUME,)),
    ("LPPool1d", (2, 3), {"stride": 2}, (LINE,)),
    ("LPPool2d", (3.0, (2, 3)), {"ceil_mode": True}, (np.abs(IMG),)),
    ("MaxUnpool1d", (2,), {}, (LINE[:, :, :2], np.array([[[0, 3]] * 4] * 2))),
    ("MaxUnpool2d", (2,), {"stride": 1}, (IMG[:, :, :1, :2], np.array([[[[5, 0]]] * 4] * 2))),
    ("MaxUnpool3d", (2,), {}, (IMG[:, :, :1, :2, None], np.array([[[[[5], [0]]]] * 4] * 2))),
    ("InstanceNorm1d", (4,), {}, (LINE,)),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, (IMG,)),
    ("InstanceNorm2d", (4,), {"affine": True}, (IMG[0],)),
    ("InstanceNorm3d", (2,), {"eps": 1e-3}, (VOLUME,)),
    ("LocalResponseNorm", (3,), {"alpha": 0.1, "k": 2.0}, (IMG,)),
    ("LocalResponseNorm", (2,), {}, (LINE,)),
    ("Upsample", (), {"scale_factor": 2}, (IMG,)),
    ("Upsample", (), {"size": (5, 13)}, (IMG,)),
    ("Upsample", (), {"size": 4, "mode": "nearest-exact"}, (LINE,)),
    ("Upsample", (), {"scale_factor": (1.5, 0.6), "mode": "bilinear"}, (IMG,)),
    ("Upsample", (), {"size": (9, 4), "mode": "bilinear", "align_corners": True}, (IMG,)),
    ("Upsample", (), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}, (IMG,)),
    ("Upsample", (), {"size": (9, 4), "mode": "bicubic"}, (IMG,)),
    ("Upsample", (), {"scale_factor": 2, "mode": "linear"}, (LINE,)),
    ("Upsample", (), {"scale_factor": 2, "mode": "trilinear", "align_corners": True}, (VOLUME,)),
    ("Upsample", (), {"size": (3, 4), "mode": "area"}, (IMG,)),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, (IMG,)),
    ("UpsamplingBilinear2d", ((9, 4),), {}, (IMG,)),
    ("PixelShuffle", (2,), {}, (IMG,)),
    ("PixelUnshuffle", (3,), {}, (IMG[:, :, :6],)),
    ("ChannelShuffle", (2,), {}, (IMG,)),
    ("ZeroPad1d", (2,), {}, (LINE,)),
    ("ZeroPad2d", ((1, 0, 2, 1),), {}, (IMG,)),
    ("ZeroPad3d", (1,), {}, (VOLUME,)),
    ("ConstantPad1d", ((1, 2), 3.5), {}, (LINE,)),
    ("ConstantPad2d", (1, -1.0), {}, (IMG,)),
    ("ConstantPad3d", (1, 0.5), {}, (VOLUME,)),
    ("ReflectionPad1d", (2,), {}, (LINE,)),
    ("ReflectionPad2d", ((1, 0, 2, 1),), {}, (IMG,)),
    ("ReflectionPad3d", (1,), {}, (VOLUME,)),
    ("ReplicationPad1d", (2,), {}, (LINE[0],)),
    ("ReplicationPad2d", ((1, 0, 2, 1),), {}, (IMG,)),
    ("ReplicationPad3d", (1,), {}, (VOLUME,)),
    ("CircularPad1d", (2,), {}, (LINE,)),
    ("CircularPad2d", ((1, 0, 2, 1),), {}, (IMG,)),
    ("CircularPad3d", (1,), {}, (VOLUME,)),
    ("CosineSimilarity", (), {}, (X, X[::-1].copy())),
    ("PairwiseDistance", (), {"p": 1.0, "keepdim": True}, (X, X[::-1].copy())),
    ("RNN", (8, 3), {}, (SEQ,)),
    ("RNN", (8, 3, 2, "relu"), {"bias": False}, (SEQ, numbers(2, 5, 3))),
    ("LSTM", (8, 3), {"num_layers": 2, "batch_first": True, "bidirectional": True}, (SEQ,)),
    ("LSTM", (8, 4), {"proj_size": 3}, (SEQ[0],)),
    ("GRU", (8, 3), {"num_layers": 2, "bidirectional": True}, (SEQ, numbers(4, 5, 3))),
    ("GRU", (8, 3), {"batch_first": True}, (SEQ,)),
    ("RNNCell", (6, 3), {"nonlinearity": "relu"}, (X, numbers(4, 3))),
    ("LSTMCell", (6, 3), {}, (X,)),
    ("GRUCell", (6, 3), {"bias": False}, (X[0],)),
]


def _both(name: str, args: tuple, keywords: dict) -> tuple[Any, torch.nn.Module]:
    return getattr(gt.nn, name)(*args, **keywords), getattr(torch.nn, name)(*args, **keywords)


def _label(case: tuple) -> str:
    return f"{case[0]}{case[1]}{case[2] or ''}".replace(" ", "")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=_label)
def test_a_module_is_pytorchs(engine: str, case: tuple) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = _both(*case[:3])
        compare_modules(own, theirs, case[3])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [c for c in CASES if c[0].startswith(("BatchNorm", "Dropout", "InstanceNorm"))], ids=_label)
def test_an_evaluated_module_is_pytorchs(engine: str, case: tuple) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = _both(*case[:3])
        compare_modules(own.eval(), theirs.eval(), case[3])


def test_every_module_class_has_a_case() -> None:
    """Modules made of others, and modules without random numbers, are tested in files of their own."""
    apart = {"Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "MultiheadAttention"}
    apart |= {"TransformerEncoder", "TransformerEncoderLayer", "Dropout1d", "Dropout2d", "Dropout3d"}
    apart |= {"AlphaDropout", "RReLU", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "SyncBatchNorm"}
    apart |= {"RNNBase", "FeatureAlphaDropout", "FractionalMaxPool2d", "FractionalMaxPool3d"}  # random
    apart |= {"AdaptiveLogSoftmaxWithLoss", "DataParallel", *(n for n in gt.nn.__all__ if n.startswith("Lazy"))}
    classes = {n for n in gt.nn.__all__ if isinstance(getattr(gt.nn, n), type) and issubclass(getattr(gt.nn, n), gt.nn.Module)}
    losses = {n for n in classes if n.endswith("Loss")}
    assert classes - losses - apart == {c[0] for c in CASES}


def test_defaults_and_arguments_stand_in_pytorchs_order() -> None:
    import inspect

    for name in gt.nn.__all__:
        own, theirs = getattr(gt.nn, name), getattr(torch.nn, name, None)
        if not isinstance(own, type) or theirs is None or name in ("Module", "Parameter", "Sequential", "Identity"):
            continue
        if own.__init__.__name__ == "begin":  # made from a list of settings
            continue
        ours = list(inspect.signature(own.__init__).parameters.values())[1:]
        for p, q in zip(ours, list(inspect.signature(theirs.__init__).parameters.values())[1:]):
            if q.kind is q.VAR_POSITIONAL:
                break  # the arguments are its base's
            assert p.name == q.name, f"{name}: {p.name} where PyTorch has {q.name}"
            if not callable(q.default):
                assert p.default == q.default, f"{name}.{p.name}"


def test_a_module_prints_as_pytorchs_does() -> None:
    with gt.testing.cluster():
        for name, args in (("Linear", (3, 4)), ("Conv2d", (1, 2, 3)), ("LayerNorm", (8,)), ("BatchNorm2d", (4,)), ("ReLU", ())):
            own, theirs = _both(name, args, {})
            assert repr(own).split("eps")[0] == repr(theirs).split("eps")[0]
