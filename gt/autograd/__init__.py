"""Gradients beyond `backward()`: of chosen inputs, of gradients, of functions of one's own; and checks of them."""

from gt import missing_names
from gt.autograd import functional
from gt.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from gt.autograd.check import GradcheckError, gradcheck, gradgradcheck
from gt.autograd.function import Function
from gt.autograd.functional import hessian, jacobian
from gt.autograd.variable import Variable
from gt.autograd.walk import backward, grad
from gt.client.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from gt.import_paths import add_files

__all__ = [
    "Function",
    "GradcheckError",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
]
__all__ += [
    "gradgradcheck",
    "hessian",
    "inference_mode",
    "is_anomaly_enabled",
    "jacobian",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]

FILES = {
    "grad_mode": "enable_grad inference_mode no_grad set_grad_enabled",
    "gradcheck": "gradcheck gradgradcheck GradcheckError",
    "anomaly_mode": "detect_anomaly set_detect_anomaly",
}
add_files(globals(), FILES)
__getattr__ = missing_names.of(__name__)
