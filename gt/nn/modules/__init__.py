"""`torch.nn.modules`: the names of `gt.nn`, by the files that scripts import them from."""

from typing import Any

from gt.import_paths import add_files
from gt.nn.conv import _Conv
from gt.nn.linear import Linear
from gt.nn.losses import _Loss, _WeightedLoss
from gt.nn.modules import utils
from gt.nn.norm import _BatchNorm, _InstanceNorm

__all__ = ["utils"]
FILES = {
    "activation": (
        "Threshold ReLU RReLU Hardtanh ReLU6 Sigmoid Hardsigmoid Tanh SiLU Mish Hardswish ELU CELU SELU GLU GELU "
        "Hardshrink LeakyReLU LogSigmoid Softplus Softshrink MultiheadAttention PReLU Softsign Tanhshrink Softmin "
        "Softmax Softmax2d LogSoftmax"
    ),
    "adaptive": "AdaptiveLogSoftmaxWithLoss",
    "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d SyncBatchNorm _BatchNorm",
    "channelshuffle": "ChannelShuffle",
    "container": "Sequential ModuleList ModuleDict ParameterList ParameterDict",
    "conv": (
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d LazyConv2d LazyConv3d "
        "LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d _ConvNd"
    ),
    "distance": "PairwiseDistance CosineSimilarity",
    "dropout": "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout",
    "flatten": "Flatten Unflatten",
    "fold": "Fold Unfold",
    "instancenorm": (
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d _InstanceNorm"
    ),
    "linear": "Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear",
    "loss": (
        "L1Loss NLLLoss PoissonNLLLoss GaussianNLLLoss KLDivLoss MSELoss BCELoss BCEWithLogitsLoss HingeEmbeddingLoss "
        "MultiLabelMarginLoss SmoothL1Loss HuberLoss SoftMarginLoss CrossEntropyLoss MultiLabelSoftMarginLoss "
        "CosineEmbeddingLoss MarginRankingLoss MultiMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss "
        "CTCLoss _Loss _WeightedLoss"
    ),
    "module": "Module",
    "normalization": "LocalResponseNorm LayerNorm GroupNorm RMSNorm",
    "padding": (
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
        "ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d "
        "ZeroPad3d"
    ),
    "pixelshuffle": "PixelShuffle PixelUnshuffle",
    "pooling": (
        "MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d AvgPool1d AvgPool2d AvgPool3d "
        "FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
        "AdaptiveMaxPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d"
    ),
    "rnn": "RNNBase RNN LSTM GRU RNNCell LSTMCell GRUCell",
    "sparse": "Embedding EmbeddingBag",
    "transformer": "Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer",
    "upsampling": "Upsample UpsamplingNearest2d UpsamplingBilinear2d",
}
# Bases by which scripts recognise modules, or from which they derive their own
BASES = {
    "_BatchNorm": _BatchNorm,
    "_ConvNd": _Conv,
    "_InstanceNorm": _InstanceNorm,
    "_Loss": _Loss,
    "_WeightedLoss": _WeightedLoss,
}


def fill(names: dict[str, Any]) -> None:
    """Take the classes of `gt.nn`, which imports this package before it has them all."""
    add_files(globals(), FILES, {**names, **BASES, "NonDynamicallyQuantizableLinear": Linear})
    globals().update({name: names[name] for holds in FILES.values() for name in holds.split() if name in names})
