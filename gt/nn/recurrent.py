"""Recurrent networks: one step after another, each of a few instructions, so that a run of them is one trace."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import zeros
from gt.client.functions.products import linear
from gt.client.functions.reshape import cat, stack
from gt.nn import functional as F
from gt.nn import init
from gt.nn.linear import empty
from gt.nn.module import Module
from gt.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

State = Any  # h, or (h, c)


def _rnn(function: Any) -> Any:
    def step(x: Tensor, state: Tensor, w: Tensor, b: Tensor | None, project: Tensor | None) -> tuple[Tensor, State]:
        h = function(x + linear(state, w, b))
        return h, h

    return step


def _gru(x: Tensor, state: Tensor, w: Tensor, b: Tensor | None, project: Tensor | None) -> tuple[Tensor, State]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), linear(state, w, b).chunk(3, -1)
    reset, keep = F.sigmoid(xr + hr), F.sigmoid(xz + hz)
    new = F.tanh(xn + reset * hn)
    h = new + keep * (state - new)
    return h, h


def _lstm(x: Tensor, state: State, w: Tensor, b: Tensor | None, project: Tensor | None) -> tuple[Tensor, State]:
    h, c = state
    i, f, g, o = (x + linear(h, w, b)).chunk(4, -1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    h = h if project is None else linear(h, project)
    return h, (h, c)


STEPS = {"RNN_TANH": (1, _rnn(F.tanh)), "RNN_RELU": (1, _rnn(F.relu)), "LSTM": (4, _lstm), "GRU": (3, _gru)}


class RNNBase(Module):
    """Layers of cells that go along a sequence (length, batch, features), forwards and, where asked, backwards too."""

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if proj_size and (mode != "LSTM" or proj_size >= hidden_size):
            raise ValueError(f"proj_size is an LSTM's and less than {hidden_size}, not {proj_size} of {mode}")
        if num_layers < 1 or hidden_size < 1:
            raise ValueError(f"num_layers and hidden_size are 1 or more, not {num_layers} and {hidden_size}")
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
        """Nothing to do: where weights lie is the workers' business."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        parts = [k for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr") if hasattr(self, f"{k}_l0")]
        return [[getattr(self, f"{k}_{n}") for k in parts] for n in self._names()]

    def _names(self) -> list[str]:
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def forward(self, input: Any, hx: State = None) -> tuple[Any, State]:
        """The last layer's states at every place, and every layer's at the end."""
        packed = input if isinstance(input, PackedSequence) else None
        if packed is not None:
            x, lengths = pad_packed_sequence(packed)
            sizes = [int(n) for n in lengths.tolist()]
        else:
            x, sizes = input, None
        single = x.ndim == 2
        if single:
            x = x.unsqueeze(1)
        elif self.batch_first and packed is None:
            x = x.transpose(0, 1)
        if x.ndim != 3 or x.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__} wants {self.input_size} features at each place, not {input.shape}")
        state = self._begin(x, hx, single)
        y: Any
        y, last = self._run(x, state, sizes)
        if single:
            y, last = y.squeeze(1), tuple(t.squeeze(1) for t in last)
        elif self.batch_first and packed is None:
            y = y.transpose(0, 1)
        if packed is not None:
            y = pack_padded_sequence(y, lengths, enforce_sorted=packed.sorted_indices is None)
        return y, last if self.mode == "LSTM" else last[0]

    def _begin(self, x: Tensor, hx: State, single: bool) -> tuple[Tensor, ...]:
        """The states to begin from, as (layers * ways, batch, features): h, and c of an LSTM."""
        n, batch = len(self._names()), x.shape[1]
        widths = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        if hx is None:
            return tuple(zeros(n, batch, w, dtype=x.dtype) for w in widths)
        given = tuple(hx) if self.mode == "LSTM" else (hx,)
        given = tuple(t.unsqueeze(1) for t in given) if single else given
        for t, w in zip(given, widths):
            if t.shape != (n, batch, w):
                raise ValueError(f"{type(self).__name__} wants a state of {(n, batch, w)}, not {t.shape}")
        return given

    def _run(self, x: Tensor, state: tuple[Tensor, ...], sizes: list[int] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        ways = 2 if self.bidirectional else 1
        ends: list[tuple[Tensor, ...]] = []
        for i, name in enumerate(self._names()):
            if i % ways == 0:
                if i and self.dropout:
                    x = F.dropout(x, self.dropout, self.training)
                made = []
            y, end = self._along(x, tuple(t[i] for t in state), name, sizes)
            made.append(y)
            ends.append(end)
            if len(made) == ways:
                x = made[0] if ways == 1 else cat(made, axis=-1)
        return x, tuple(stack(list(parts)) for parts in zip(*ends))

    def _along(
        self, x: Tensor, begin: tuple[Tensor, ...], name: str, sizes: list[int] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer one way: what enters is mapped for all places at once, then the steps follow."""
        step = STEPS[self.mode][1]
        w, project = getattr(self, f"weight_hh_{name}"), getattr(self, f"weight_hr_{name}", None)
        b = getattr(self, f"bias_hh_{name}") if self.bias else None
        entered = linear(x, getattr(self, f"weight_ih_{name}"), getattr(self, f"bias_ih_{name}") if self.bias else None)
        parts = entered.unbind(0)
        state: State = begin if self.mode == "LSTM" else begin[0]
        found: list[Any] = [None] * len(parts)
        backwards = name.endswith("_reverse")
        for t in range(len(parts) - 1, -1, -1) if backwards else range(len(parts)):
            h, new = step(parts[t], state, w, b, project)
            if sizes is not None and min(sizes) <= t:  # sequences that are over keep their state
                on = self._going(sizes, t, h)
                h = h * on
                new = tuple(o + (n - o) * on for n, o in zip(new, state)) if self.mode == "LSTM" else state + (new - state) * on
            found[t], state = h, new
        return stack(found), state if self.mode == "LSTM" else (state,)

    def _going(self, sizes: list[int], t: int, like: Tensor) -> Tensor:
        from gt.client.functions.create import tensor

        return tensor([[1.0 if n > t else 0.0] for n in sizes], dtype=like.dtype)

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
        bound = 1.0 / math.sqrt(hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input: Tensor, hx: State = None) -> State:
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__} wants {self.input_size} features, not {input.shape}")
        if hx is None:
            none = zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype)
            hx = (none, none) if self.mode == "LSTM" else none
        entered = linear(input, self.weight_ih, self.bias_ih)
        return STEPS[self.mode][1](entered, hx, self.weight_hh, self.bias_hh, None)[1]

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
