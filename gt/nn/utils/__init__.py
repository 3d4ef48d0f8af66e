"""Gradients held within bounds, parameters as one vector, sequences of unequal length."""

from gt.nn.utils import rnn
from gt.nn.utils.clip import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
    parameters_to_vector,
    vector_to_parameters,
)

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector", "rnn"]
__all__ += ["vector_to_parameters"]
