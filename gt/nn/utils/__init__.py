"""Gradients held within bounds, parameters as one vector or computed from others, sequences of unequal length."""

from gt.nn.utils import parametrizations, parametrize, rnn
from gt.nn.utils.clip import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
    parameters_to_vector,
    vector_to_parameters,
)
from gt.nn.utils.norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector", "rnn"]
__all__ += ["vector_to_parameters"]
__all__ += ["parametrizations", "parametrize", "remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]
