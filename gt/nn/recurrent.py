"""Recurrent networks: a whole stack of layers along a sequence is one instruction; a cell's step is a few."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import zeros
from gt.client.functions.join import cat
from gt.client.functions.products import linear
from gt.client.scope import is_grad_enabled
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.linear import empty
from gt.nn.module import Module
from gt.nn.utils.rnn import PackedSequence
from gt.ops.table import TABLE

State = Any  # h, or (h, c)


def _rnn(function: Any) -> Any:
    def step(x: Tensor, state: Tensor, w: Tensor, b: Tensor | None) -> State:
        return function(x + linear(state, w, b))

    return step


def _gru(x: Tensor, state: Tensor, w: Tensor, b: Tensor | None) -> State:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), linear(state, w, b).chunk(3, -1)
    reset, keep = F.sigmoid(xr + hr), F.sigmoid(xz + hz)
    new = F.tanh(xn + reset * hn)
    return new + keep * (state - new)


def _lstm(x: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    h, c = state
    i, f, g, o = (x + linear(h, w, b)).chunk(4, -1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c), c


STEPS = {"RNN_TANH": (1, _rnn(F.tanh)), "RNN_RELU": (1, _rnn(F.relu)), "LSTM": (4, _lstm), "GRU": (3, _gru)}


class RNNBase(Module):
    """Layers of cells along a sequence (length, batch, features), forwards and, with `bidirectional`, backwards too."""

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if proj_size and (mode != "LSTM" or proj_size >= hidden_size):
            raise ValueError(f"proj_size is an LSTM's and less than {hidden_size}, not {proj_size} of {mode}")
        if num_layers < 1 or hidden_size < 1:
            raise ValueError(f"num_layers and hidden_size: expected 1 or more, got {num_layers} and {hidden_size}")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bidirectional
        self.proj_size = proj_size
        gates, out, ways = STEPS[mode][0] * hidden_size, proj_size or hidden_size, 2 if bidirectional else 1
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * ways
            for end in ("", "_reverse")[:ways]:
                name = f"l{layer}{end}"
                setattr(self, f"weight_ih_{name}", empty(gates, width, dtype=dtype))
                setattr(self, f"weight_hh_{name}", empty(gates, out, dtype=dtype))
                if bias:
                    setattr(self, f"bias_ih_{name}", empty(gates, dtype=dtype))
                    setattr(self, f"bias_hh_{name}", empty(gates, dtype=dtype))
                if proj_size:
                    setattr(self, f"weight_hr_{name}", empty(proj_size, hidden_size, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Without effect: workers lay out the weights."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _all_weights(self) -> list[list[str]]:
        """Names of the parameters of each layer and direction, which scripts for PyTorch reach for."""
        parts = [k for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr") if hasattr(self, f"{k}_l0")]
        return [[f"{k}_{n}" for k in parts] for n in self._names()]

    def _names(self) -> list[str]:
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def forward(self, input: Any, hx: State = None) -> tuple[Any, State]:
        """The last layer's states at every position, and every layer's final state."""
        packed = input if isinstance(input, PackedSequence) else None
        x = input if packed is None else packed.data
        sizes = () if packed is None else tuple(int(n) for n in packed.batch_sizes.tolist())
        single = packed is None and x.ndim == 2
        if single:
            x = x.unsqueeze(1)
        elif self.batch_first and packed is None:
            x = x.transpose(0, 1)
        if x.ndim != (3 if packed is None else 2) or x.shape[-1] != self.input_size:
            raise ArgumentError(f"{type(self).__name__} expected {self.input_size} features at each position, got {x.shape}")
        state = self._begin(x, hx, single, sizes[0] if packed is not None else x.shape[1])
        if packed is not None and packed.sorted_indices is not None and hx is not None:
            state = tuple(t.index_select(1, packed.sorted_indices) for t in state)
        y: Any
        y, last = self._run(x, state, sizes)
        if packed is not None:
            y = PackedSequence(y, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            if packed.unsorted_indices is not None:
                last = tuple(t.index_select(1, packed.unsorted_indices) for t in last)
        elif single:
            y, last = y.squeeze(1), tuple(t.squeeze(1) for t in last)
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y, last if self.mode == "LSTM" else last[0]

    def _begin(self, x: Tensor, hx: State, single: bool, batch: int) -> tuple[Tensor, ...]:
        """The initial states, as (layers * directions, batch, features): h, and c of an LSTM."""
        n = len(self._names())
        widths = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        if hx is None:
            return tuple(zeros(n, batch, w, dtype=x.dtype) for w in widths)
        given = tuple(hx) if self.mode == "LSTM" else (hx,)
        given = tuple(t.unsqueeze(1) for t in given) if single else given
        for t, w in zip(given, widths):
            if t.shape != (n, batch, w):
                raise ValueError(f"{type(self).__name__} expected a state of shape {(n, batch, w)}, got {t.shape}")
        return given

    def _run(self, x: Tensor, state: tuple[Tensor, ...], sizes: tuple[int, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All layers as one instruction; with dropout between them, one instruction for each."""
        weights = self.all_weights
        if not (self.dropout and self.training and self.num_layers > 1):
            y, *last = self._apply(x, state, weights, self.num_layers, sizes)
            return y, tuple(last)
        ways = 2 if self.bidirectional else 1
        ends = []
        for layer in range(self.num_layers):
            x = F.dropout(x, self.dropout) if layer else x
            mine = slice(layer * ways, (layer + 1) * ways)
            x, *end = self._apply(x, tuple(t[mine] for t in state), weights[mine], 1, sizes)
            ends.append(end)
        return x, tuple(cat(list(parts)) for parts in zip(*ends))

    def _apply(
        self, x: Tensor, state: tuple[Tensor, ...], weights: list[list[Tensor]], layers: int, sizes: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        operands = (x, *state, *(w for group in weights for w in group))
        saves = is_grad_enabled() and any(t.requires_grad for t in operands)
        statics = (self.mode, layers, 2 if self.bidirectional else 1, self.bias, sizes, saves)
        return apply(TABLE["recurrent"], operands, statics)[:-1]

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        text += f", proj_size={self.proj_size}" if self.proj_size else ""
        text += f", num_layers={self.num_layers}" if self.num_layers != 1 else ""
        text += "" if self.bias else ", bias=False"
        text += ", batch_first=True" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", bidirectional=True" if self.bidirectional else "")


class RNN(RNNBase):
    """`tanh(W x + b + U h + c)` along a sequence, or relu."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", *args: Any,
                 **kwargs: Any) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"no nonlinearity {nonlinearity!r}: known are tanh, relu")
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **kwargs)


class LSTM(RNNBase):
    """Long short-term memory along a sequence; its state is (h, c)."""

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", input_size, hidden_size, *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent units along a sequence."""

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", input_size, hidden_size, *args, **kwargs)


class RNNCellBase(Module):
    mode = ""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        gates = STEPS[self.mode][0] * hidden_size
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.weight_ih, self.weight_hh = empty(gates, input_size, dtype=dtype), empty(gates, hidden_size, dtype=dtype)
        self.bias_ih = empty(gates, dtype=dtype) if bias else None
        self.bias_hh = empty(gates, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input: Tensor, hx: State = None) -> State:
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__}: expected {self.input_size} features, got {input.shape}")
        if hx is None:
            none = zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype)
            hx = (none, none) if self.mode == "LSTM" else none
        entered = linear(input, self.weight_ih, self.bias_ih)
        return STEPS[self.mode][1](entered, hx, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """One step of an RNN."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"no nonlinearity {nonlinearity!r}: known are tanh, relu")
        self.mode, self.nonlinearity = f"RNN_{nonlinearity.upper()}", nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype)


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (h, c) to (h, c)."""

    mode = "LSTM"


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    mode = "GRU"
