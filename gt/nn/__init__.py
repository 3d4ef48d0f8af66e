"""Modules, functions, losses and optimizers, with PyTorch's names."""

from gt.nn import functional, init, utils
from gt.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softsign,
    Tanh,
    Tanhshrink,
)  # fmt: skip
from gt.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from gt.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from gt.nn.conv import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    MaxPool1d,
    MaxPool2d,
)  # fmt: skip
from gt.nn.embedding import Embedding
from gt.nn.functional import cross_entropy, mse_loss
from gt.nn.linear import Flatten, Identity, Linear, Unflatten
from gt.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)  # fmt: skip
from gt.nn.module import Module, Parameter
from gt.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Dropout,
    Dropout1d,
    Dropout2d,
    GroupNorm,
    LayerNorm,
    RMSNorm,
)  # fmt: skip
from gt.optim import SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSprop

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d"]
__all__ += ["BatchNorm2d", "BatchNorm3d", "CELU", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]
__all__ += ["CosineEmbeddingLoss", "CrossEntropyLoss", "Dropout", "Dropout1d", "Dropout2d", "ELU", "Embedding", "Flatten"]
__all__ += ["GELU", "GLU", "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "HuberLoss", "Identity", "KLDivLoss"]
__all__ += ["L1Loss", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d"]
__all__ += ["Mish", "Module", "ModuleDict", "ModuleList", "MultiheadAttention", "NLLLoss", "PReLU", "Parameter"]
__all__ += ["ParameterDict", "ParameterList", "RMSNorm", "ReLU", "ReLU6", "SELU", "Sequential", "SiLU", "Sigmoid"]
__all__ += ["SmoothL1Loss", "Softmax", "Softmin", "Softplus", "Softsign", "Tanh", "Tanhshrink", "TransformerEncoder"]
__all__ += ["TransformerEncoderLayer", "Unflatten", "cross_entropy", "functional", "init", "mse_loss", "utils"]
__all__ += ["Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "SGD"]
