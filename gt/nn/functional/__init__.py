"""Functions of the `nn` namespace, with PyTorch's names and arguments."""

from gt.client.functions.layers import (
    adaptive_avg_pool1d, adaptive_avg_pool2d, avg_pool1d, avg_pool2d, batch_norm, conv1d, conv2d, conv3d, conv_transpose1d,
    conv_transpose2d, cosine_similarity, dropout, elu, embedding, gelu, glu, group_norm, hardsigmoid, hardswish, hardtanh,
    instance_norm, layer_norm, leaky_relu, log_softmax, logsigmoid, max_pool1d, max_pool2d, mish, normalize, relu6, rms_norm,
    scaled_dot_product_attention, selu, silu, softmax, softplus, softsign,
)  # fmt: skip
from gt.client.functions.moving import pad
from gt.client.functions.products import linear
from gt.client.functions.picking import one_hot
from gt.nn.functional.activations import celu, prelu, relu, sigmoid, softmin, tanh, tanhshrink
from gt.nn.functional.drop import dropout1d, dropout2d
from gt.nn.functional.loss import (
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, huber_loss, kl_div,
    l1_loss, mse_loss, nll_loss, smooth_l1_loss,
)  # fmt: skip

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "batch_norm", "binary_cross_entropy"]
__all__ += ["binary_cross_entropy_with_logits", "celu", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"]
__all__ += ["cosine_embedding_loss", "cosine_similarity", "cross_entropy", "dropout", "dropout1d", "dropout2d", "elu"]
__all__ += ["embedding", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "instance_norm"]
__all__ += ["kl_div", "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid", "max_pool1d"]
__all__ += ["max_pool2d", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "prelu", "relu", "relu6", "rms_norm"]
__all__ += ["scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softmin", "softplus"]
__all__ += ["softsign", "tanh", "tanhshrink"]
