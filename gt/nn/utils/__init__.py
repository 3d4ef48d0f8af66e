"""Gradient clipping, parameters as one vector, parametrizations, and sequences of unequal length."""

from typing import Any

from gt import missing_names
from gt.import_paths import add_files
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

clip_grad_norm = clip_grad_norm_  # its older name
FILES = {
    "clip_grad": "clip_grad_norm_ clip_grad_norm clip_grad_value_ clip_grads_with_norm_ get_total_norm",
    "convert_parameters": "parameters_to_vector vector_to_parameters",
    "spectral_norm": "spectral_norm remove_spectral_norm",
    "weight_norm": "weight_norm remove_weight_norm",
}
add_files(globals(), FILES)


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Create a module. Its initialisation is not skipped, as it runs on the workers and costs the script little."""
    return module_cls(*args, **kwargs)


__getattr__ = missing_names.of(__name__)
