"""Functions of the `nn` namespace, with PyTorch's names and arguments."""

from functools import partial

from gt import missing_names
from gt.client.functions.activation import hardshrink, prelu
from gt.client.functions.index_arrays import one_hot
from gt.client.functions.movement import pad
from gt.client.functions.out import with_out
from gt.client.functions.products import linear
from gt.client.functions.vector_norms import pdist
from gt.nn.functional.activations import (
    celu,
    celu_,
    cosine_similarity,
    elu,
    elu_,
    gelu,
    glu,
    gumbel_softmax,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    logsigmoid,
    mish,
    normalize,
    relu,
    relu6,
    relu_,
    rrelu,
    selu,
    selu_,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    threshold_,
)  # fmt: skip
from gt.nn.functional.attention import multi_head_attention_forward, scaled_dot_product_attention
from gt.nn.functional.basic import (
    alpha_dropout,
    bilinear,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    embedding,
    embedding_bag,
    feature_alpha_dropout,
)
from gt.nn.functional.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, fold, unfold
from gt.nn.functional.fractional import fractional_max_pool2d, fractional_max_pool3d
from gt.nn.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)  # fmt: skip
from gt.nn.functional.margins import (
    ctc_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    pairwise_distance,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)  # fmt: skip
from gt.nn.functional.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    native_batch_norm,
    native_group_norm,
    native_layer_norm,
    rms_norm,
)
from gt.nn.functional.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)  # fmt: skip
from gt.nn.functional.resize import channel_shuffle, interpolate, pixel_shuffle, pixel_unshuffle, upsample
from gt.nn.functional.sampling import (
    affine_grid,
    grid_sample,
    grid_sampler,
    grid_sampler_2d,
    grid_sampler_3d,
    upsample_bilinear,
    upsample_nearest,
)

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d"]
__all__ += ["adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "avg_pool1d", "avg_pool2d", "avg_pool3d"]
__all__ += ["batch_norm", "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu"]
__all__ += ["channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
__all__ += ["cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_loss", "dropout", "dropout1d", "dropout2d"]
__all__ += ["dropout3d", "elu", "elu_", "embedding", "embedding_bag", "fold", "gaussian_nll_loss", "gelu", "glu"]
__all__ += ["group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss"]
__all__ += ["huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu", "leaky_relu_"]
__all__ += ["linear", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d", "lp_pool2d", "lp_pool3d"]
__all__ += ["margin_ranking_loss"]
__all__ += ["max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss"]
__all__ += ["multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "normalize"]
__all__ += ["one_hot", "pad", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu"]
__all__ += ["relu6", "relu_", "rms_norm", "rrelu", "scaled_dot_product_attention", "selu", "sigmoid", "silu"]
__all__ += ["smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh"]
__all__ += ["tanhshrink", "threshold", "triplet_margin_loss", "triplet_margin_with_distance_loss", "unfold", "upsample"]
__all__ += ["affine_grid", "feature_alpha_dropout", "fractional_max_pool2d", "fractional_max_pool3d", "grid_sample"]
__all__ += ["linear_cross_entropy", "multi_head_attention_forward", "pdist", "upsample_bilinear", "upsample_nearest"]
__all__ += ["grid_sampler", "grid_sampler_2d", "grid_sampler_3d"]
__all__ += ["celu_", "hardtanh_", "selu_", "threshold_"]
__all__ += ["native_batch_norm", "native_group_norm", "native_layer_norm"]

# Functions that have `out=` in PyTorch.
for _name in ("avg_pool2d", "avg_pool3d", "gelu", "hardshrink", "linear", "logsigmoid", "normalize", "softplus", "softshrink"):
    globals()[_name] = with_out(_name, globals()[_name])
native_batch_norm = with_out("native_batch_norm", native_batch_norm)

# PyTorch's functions that always return indices
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    partial(pool, return_indices=True) for pool in (max_pool1d, max_pool2d, max_pool3d)
)
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    partial(pool, return_indices=True) for pool in (adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d)
)
fractional_max_pool2d_with_indices, fractional_max_pool3d_with_indices = (
    partial(pool, return_indices=True) for pool in (fractional_max_pool2d, fractional_max_pool3d)
)

__getattr__ = missing_names.of(__name__)
