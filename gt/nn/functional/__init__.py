"""Functions of the `nn` namespace, with PyTorch's names and arguments."""

from gt.client.functions.moving import pad
from gt.client.functions.picking import one_hot
from gt.client.functions.products import linear
from gt.nn.functional.activations import (
    celu,
    cosine_similarity,
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    normalize,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softsign,
    tanh,
    tanhshrink,
)  # fmt: skip
from gt.nn.functional.attention import scaled_dot_product_attention
from gt.nn.functional.basic import dropout, dropout1d, dropout2d, embedding
from gt.nn.functional.conv import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    avg_pool1d,
    avg_pool2d,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    max_pool1d,
    max_pool2d,
)  # fmt: skip
from gt.nn.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)  # fmt: skip
from gt.nn.functional.norm import batch_norm, group_norm, instance_norm, layer_norm, rms_norm

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "batch_norm", "binary_cross_entropy"]
__all__ += ["binary_cross_entropy_with_logits", "celu", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"]
__all__ += ["cosine_embedding_loss", "cosine_similarity", "cross_entropy", "dropout", "dropout1d", "dropout2d", "elu"]
__all__ += ["embedding", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "instance_norm"]
__all__ += ["kl_div", "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid", "max_pool1d"]
__all__ += ["max_pool2d", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "prelu", "relu", "relu6", "rms_norm"]
__all__ += ["scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softmin", "softplus"]
__all__ += ["softsign", "tanh", "tanhshrink"]
