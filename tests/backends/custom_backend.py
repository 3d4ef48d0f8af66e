"""The skeleton of a backend that docs/worker-backends.md shows, completed with NumPy, and two that are not right."""

import numpy as np

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "matmul": np.matmul}
UNARY = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "neg": np.negative,
    "sum": np.sum,
    "mean": np.mean,
    "transpose": np.transpose,
}


class CustomBackend:
    def __init__(self):
        self.tensors = {}
        self.calls = []

    def create_tensor(self, tensor_id, data, dtype, shape):
        self.tensors[tensor_id] = np.array(data).reshape(shape)

    def binary_op(self, result_id, op, left_id, right_id):
        self.calls.append(op)
        with np.errstate(all="ignore"):
            self.tensors[result_id] = BINARY[op](self.tensors[left_id], self.tensors[right_id])

    def unary_op(self, result_id, op, input_id):
        self.calls.append(op)
        with np.errstate(all="ignore"):
            self.tensors[result_id] = UNARY[op](self.tensors[input_id])

    def get_data(self, tensor_id):
        return np.asarray(self.tensors[tensor_id])


CREATE = {
    "full": lambda shape, value: np.full(shape, value),
    "iota": lambda shape, first, step, whole, start: first + (np.arange(shape[0], dtype=np.float64) + start[0]) * step,
}
RESHAPE = {
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, shape, axes: x.transpose(axes),
    "expand": np.broadcast_to,
    "flip": lambda x, shape, axes: x[::-1],  # wrong: it knows one axis only
}


class Shaping(CustomBackend):
    """It makes and reshapes tensors, too; not all of it right."""

    def create_op(self, result_id, op, dtype, shape, numbers, settings):
        self.calls.append(op)
        self.tensors[result_id] = CREATE[op](shape, *numbers, **settings).astype(dtype)

    def reshape_op(self, result_id, op, input_id, shape, numbers, settings):
        self.calls.append(op)
        self.tensors[result_id] = RESHAPE[op](self.tensors[input_id], shape, *numbers, **settings)


class Liar(CustomBackend):
    """Its exp is another function."""

    def unary_op(self, result_id, op, input_id):
        super().unary_op(result_id, "tanh" if op == "exp" else op, input_id)


class Forgetful(CustomBackend):
    """It does not return infinities unchanged; a probe of a few numbers does not see that."""

    def get_data(self, tensor_id):
        found = super().get_data(tensor_id)
        return np.where(np.isinf(found), found.dtype.type(0), found)


class Bare:
    """All that a backend must have, and no op but one."""

    def __init__(self):
        self.tensors = {}

    def create_tensor(self, tensor_id, data, dtype, shape):
        self.tensors[tensor_id] = data

    def binary_op(self, result_id, op, left_id, right_id):
        if op == "add":
            result = self.tensors[left_id] + self.tensors[right_id]
        self.tensors[result_id] = result

    def unary_op(self, result_id, op, input_id):
        raise NotImplementedError(op)

    def get_data(self, tensor_id):
        return np.asarray(self.tensors[tensor_id])


class Skeleton(CustomBackend):
    """The guide's own words: `max` is right for one positive number, gives an int for a negative one and fails for more."""

    def unary_op(self, result_id, op, input_id):
        if op == "relu":
            result = max(0, self.tensors[input_id])
        self.tensors[result_id] = result


class Unreadable(CustomBackend):
    """It fails only when large results are read."""

    def get_data(self, tensor_id):
        found = super().get_data(tensor_id)
        if found.size > 5:
            raise RuntimeError("lost it")
        return found
