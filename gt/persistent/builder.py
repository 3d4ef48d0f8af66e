"""The layer calls: each checks its shapes and adds one layer to the program of a kernel."""

from __future__ import annotations

from typing import Any

from gt.persistent.program import (
    Activation,
    AllReduce,
    Attention,
    DecodeProgram,
    Embed,
    Linear,
    RMSNorm,
    SiluMul,
    TokenInput,
    Weight,
)
from gt.persistent.weights import kept_or_float32


def _shaped(weight: Weight, wanted: tuple[int, ...], what: str) -> None:
    if weight.shape != wanted:
        raise ValueError(f"{what}: expected a weight of shape {wanted}, got {weight.name!r} of {weight.shape}")


class Builder:
    """Adds layers to `self.program`. With `world_size` 1 allreduce_layer only copies."""

    def __init__(self, world_size: int = 1, mpi_rank: int = 0) -> None:
        self.program = DecodeProgram()
        self.world_size, self.mpi_rank = world_size, mpi_rank

    def attach_input(self, tensor: Any = None, *, name: str) -> Weight | TokenInput:
        """A weight of the model; without a tensor, the token ids of the batch, for embed_layer."""
        self._building()
        if tensor is None:
            return TokenInput(name)
        array = kept_or_float32(tensor)
        self.program.weights.append(array)
        return Weight(len(self.program.weights) - 1, name, tuple(array.shape))

    def new_tensor(self, width: int, *, name: str = "") -> Activation:
        """An activation: `width` numbers for every token of the batch."""
        self._building()
        number = len(self.program.activations)
        tensor = Activation(number, name or f"activation{number}", width)
        self.program.activations.append(tensor)
        return tensor

    def embed_layer(self, *, input: TokenInput, weight: Weight, output: Activation | None = None) -> Activation:
        if not isinstance(input, TokenInput):
            raise TypeError("embed_layer: expected token ids, attach_input(name=...) without a tensor, as its input")
        if len(weight.shape) != 2:
            raise ValueError(f"embed_layer: expected a weight (vocabulary, width), got {weight.name!r} of {weight.shape}")
        output = self._output(output, weight.shape[1], "embed_layer")
        self.program.layers.append(Embed(weight, output))
        return output

    def rmsnorm_layer(
        self, *, input: Activation, weight: Weight, output: Activation | None = None, eps: float = 1e-6
    ) -> Activation:
        _shaped(weight, (input.width,), "rmsnorm_layer")
        output = self._output(output, input.width, "rmsnorm_layer")
        self.program.layers.append(RMSNorm(input, weight, output, eps))
        return output

    def linear_layer(
        self, *, input: Activation, weight: Weight, output: Activation | None = None, bias: Weight | None = None
    ) -> Activation:
        return self._linear("linear_layer", input, weight, bias, None, output)

    def linear_with_residual_layer(
        self,
        *,
        input: Activation,
        weight: Weight,
        residual: Activation,
        output: Activation | None = None,
        bias: Weight | None = None,
    ) -> Activation:
        """`input @ weight.T + residual`."""
        return self._linear("linear_with_residual_layer", input, weight, bias, residual, output)

    def rmsnorm_linear_layer(
        self,
        *,
        input: Activation,
        weight_norm: Weight,
        weight_linear: Weight,
        output: Activation | None = None,
        bias: Weight | None = None,
        eps: float = 1e-6,
    ) -> Activation:
        """`rmsnorm(input) @ weight_linear.T`."""
        normed = self.rmsnorm_layer(input=input, weight=weight_norm, eps=eps)
        return self._linear("rmsnorm_linear_layer", normed, weight_linear, bias, None, output)

    def paged_attention_layer(
        self,
        *,
        input: Activation,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: Weight | None = None,
        k_norm: Weight | None = None,
        cos_pos_embed: Weight | None = None,
        sin_pos_embed: Weight | None = None,
        output: Activation | None = None,
        eps: float = 1e-6,
    ) -> Activation:
        """Causal attention over the request's pages. `input` has q, k and v concatenated; each call has pages of its own."""
        if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} key-value heads: expected a multiple")
        wanted = (num_heads + 2 * num_kv_heads) * head_dim
        if input.width != wanted:
            raise ValueError(
                f"paged_attention_layer: expected q, k and v of width {wanted}, got {input.name!r} of width {input.width}"
            )
        for weight in filter(None, (q_norm, k_norm)):
            _shaped(weight, (head_dim,), "paged_attention_layer")
        self._check_rotary(head_dim, cos_pos_embed, sin_pos_embed)
        layer = len(self.program.attentions())
        shapes = {(a.kv_heads, a.head_dim) for a in self.program.attentions()} | {(num_kv_heads, head_dim)}
        if len(shapes) > 1:
            raise ValueError(
                f"attention layers share one page size: expected the same (kv heads, head_dim), got {sorted(shapes)}"
            )
        output = self._output(output, num_heads * head_dim, "paged_attention_layer")
        self.program.layers.append(
            Attention(
                input, output, layer, num_heads, num_kv_heads, head_dim, q_norm, k_norm, eps, cos_pos_embed, sin_pos_embed
            )
        )
        return output

    def _check_rotary(self, head_dim: int, cos: Weight | None, sin: Weight | None) -> None:
        if (cos is None) != (sin is None):
            raise ValueError("paged_attention_layer: expected both cos_pos_embed and sin_pos_embed, or neither")
        for table in filter(None, (cos, sin)):
            if len(table.shape) != 2 or table.shape[1] != head_dim // 2 or head_dim % 2:
                raise ValueError(f"a rotary table: expected (positions, {head_dim} / 2), got {table.name!r} of {table.shape}")

    def silu_mul_layer(self, *, input: Activation, output: Activation | None = None) -> Activation:
        """`silu(gate) * up`, where `input` has gate and up concatenated."""
        if input.width % 2:
            raise ValueError(
                f"silu_mul_layer: expected gate and up concatenated, got {input.name!r} of odd width {input.width}"
            )
        output = self._output(output, input.width // 2, "silu_mul_layer")
        self.program.layers.append(SiluMul(input, output))
        return output

    def allreduce_layer(self, *, input: Activation, output: Activation | None = None) -> Activation:
        """The sum over all ranks; a copy when world_size is 1."""
        output = self._output(output, input.width, "allreduce_layer")
        self.program.layers.append(AllReduce(input, output))
        return output

    def argmax_layer(self, *, input: Activation) -> None:
        """The last layer: the next token is chosen from `input`, by the request's sampling options."""
        if input.width != self.program.vocabulary():
            raise ValueError(f"argmax_layer: expected a number per token id ({self.program.vocabulary()}), got {input.width}")
        self.program.logits = input

    def _linear(
        self,
        what: str,
        input: Activation,
        weight: Weight,
        bias: Weight | None,
        residual: Activation | None,
        output: Activation | None,
    ) -> Activation:
        if len(weight.shape) != 2 or weight.shape[1] != input.width:
            raise ValueError(
                f"{what}: expected a weight (output width, {input.width}) for {input.name!r}, got "
                f"{weight.name!r} of {weight.shape}"
            )
        width = weight.shape[0]
        if bias is not None:
            _shaped(bias, (width,), f"the bias of {what}")
        if residual is not None and residual.width != width:
            raise ValueError(f"{what}: expected a residual of width {width}, got {residual.name!r} of width {residual.width}")
        output = self._output(output, width, what)
        if output == input:
            raise ValueError(f"{what} cannot write {output.name!r} over its own input")
        self.program.layers.append(Linear(input, weight, bias, residual, output))
        return output

    def _output(self, output: Activation | None, width: int, what: str) -> Activation:
        self._building()
        if output is None:
            return self.new_tensor(width)
        if output.width != width:
            raise ValueError(f"{what}: expected an output of width {width}, got {output.name!r} of width {output.width}")
        return output

    def _building(self) -> None:
        if self.program.logits is not None:
            raise ValueError("the model is complete: nothing can follow argmax_layer or load_model")
