"""Modules, functions, losses and optimizers, with PyTorch's names."""

from gt import missing_names
from gt.nn import functional, init, modules, parallel, parameter, utils
from gt.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
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
    RReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)  # fmt: skip
from gt.nn.adaptive_softmax import AdaptiveLogSoftmaxWithLoss
from gt.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from gt.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from gt.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Fold, Unfold
from gt.nn.embedding import Embedding, EmbeddingBag
from gt.nn.functional import cross_entropy, mse_loss
from gt.nn.lazy import (
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
    LazyLinear,
)
from gt.nn.linear import Bilinear, Flatten, Identity, Linear, Unflatten
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
from gt.nn.margins import (
    CosineSimilarity,
    CTCLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    MarginRankingLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    PairwiseDistance,
    PoissonNLLLoss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)  # fmt: skip
from gt.nn.module import Module
from gt.nn.norm import (
    AlphaDropout,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    FeatureAlphaDropout,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
    SyncBatchNorm,
)  # fmt: skip
from gt.nn.parallel import DataParallel
from gt.nn.parameter import Buffer, Parameter
from gt.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    FractionalMaxPool2d,
    FractionalMaxPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
)  # fmt: skip
from gt.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell
from gt.nn.resize import (
    ChannelShuffle,
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)  # fmt: skip
from gt.nn.transformer import Transformer, TransformerDecoder, TransformerDecoderLayer
from gt.optim import SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSprop

__all__ = ["Adagrad", "Adam", "AdamW", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d"]
__all__ += ["AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AlphaDropout", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss"]
__all__ += ["BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Bilinear", "CELU", "CTCLoss"]
__all__ += ["ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d"]
__all__ += ["ConstantPad3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
__all__ += ["CosineEmbeddingLoss", "CosineSimilarity", "CrossEntropyLoss", "Dropout", "Dropout1d", "Dropout2d"]
__all__ += ["Dropout3d", "ELU", "Embedding", "EmbeddingBag", "Flatten", "Fold", "GELU", "GLU", "GRU", "GRUCell"]
__all__ += ["GaussianNLLLoss", "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss"]
__all__ += ["HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss", "L1Loss"]
__all__ += ["LPPool1d", "LPPool2d", "LSTM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "Lion", "LocalResponseNorm"]
__all__ += ["LogSigmoid", "LogSoftmax", "MSELoss", "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "MaxPool3d"]
__all__ += ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "Mish", "Module", "ModuleDict", "ModuleList"]
__all__ += ["MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "MultiheadAttention", "NLLLoss"]
__all__ += ["Optimizer", "PReLU", "PairwiseDistance", "Parameter", "Buffer", "ParameterDict", "ParameterList", "PixelShuffle"]
__all__ += ["PixelUnshuffle", "PoissonNLLLoss", "RMSNorm", "RMSprop", "RNN", "RNNBase", "RNNCell", "RReLU"]
__all__ += ["ReLU", "ReLU6", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d"]
__all__ += ["ReplicationPad2d", "ReplicationPad3d", "SELU", "SGD", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss"]
__all__ += ["SoftMarginLoss", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "SyncBatchNorm"]
__all__ += ["Tanh", "Tanhshrink", "Threshold", "Transformer", "TransformerDecoder", "TransformerDecoderLayer"]
__all__ += ["TransformerEncoder", "TransformerEncoderLayer", "TripletMarginLoss", "TripletMarginWithDistanceLoss"]
__all__ += ["Unflatten", "Unfold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d"]
__all__ += ["ZeroPad3d", "cross_entropy", "functional", "init", "mse_loss", "utils"]
__all__ += ["LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d"]
__all__ += ["LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d"]
__all__ += ["LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear", "AdaptiveLogSoftmaxWithLoss"]
__all__ += ["DataParallel", "FeatureAlphaDropout", "FractionalMaxPool2d", "FractionalMaxPool3d", "LPPool3d"]
__all__ += ["modules", "parallel", "parameter"]

modules.fill(globals())
__getattr__ = missing_names.of(__name__)
