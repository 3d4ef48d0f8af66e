"""Small random Qwen3 and Llama models, as Hugging Face names their parts.

Weights have std 1/sqrt(fan in), so that logits are not flat.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

SIZES = dict(
    hidden_size=56,
    intermediate_size=76,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=12,
    vocab_size=101,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    eos_token_id=None,
    bos_token_id=None,
    rope_theta=10000.0,
)


def config(model_type: str = "qwen3", **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SIZES, **changes}


def weights(c: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(width: int, around: float = 1.0) -> np.ndarray:
        return rng.uniform(around - 0.5, around + 0.5, width).astype(np.float32)

    hidden, inner, vocabulary = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    found = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "model.norm.weight": vector(hidden)}
    if not c["tie_word_embeddings"]:
        found["lm_head.weight"] = matrix(vocabulary, hidden)
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    shapes |= {"self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    shapes |= {"mlp.down_proj": (hidden, inner)}
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, shape in shapes.items():
            found[f"{layer}.{name}.weight"] = matrix(*shape)
            if c.get("attention_bias" if "attn" in name else "mlp_bias"):
                found[f"{layer}.{name}.bias"] = vector(shape[0], 0.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{name}.weight"] = vector(hidden)
        if c["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                found[f"{layer}.self_attn.{name}.weight"] = vector(c["head_dim"])
    return found


def prompts(*lengths: int, vocabulary: int = 101) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocabulary, length).tolist() for length in lengths]


def environment(**more: str) -> dict[str, str]:
    """For a process that imports this tree, and packages from wherever this one found them."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}
