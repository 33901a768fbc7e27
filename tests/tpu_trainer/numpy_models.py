"""RoBERTa and GPT-2 in NumPy from PyTorch's names and layouts, to check model.safetensors independently."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]


def _norm(x: np.ndarray, weights: Weights, name: str, epsilon: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """PyTorch's Linear; the weight is [out, in]."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _conv1d(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """GPT-2's Conv1D; the weight is [in, out]."""
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, visible: np.ndarray) -> np.ndarray:
    """Returns [L, H] from q, k, v of [L, H]; `visible` [L, L]: whether a query (row) attends to a key (column)."""
    length, width = q.shape
    q, k, v = (x.reshape(length, heads, width // heads).transpose(1, 0, 2) for x in (q, k, v))
    scores = np.where(visible, q @ k.transpose(0, 2, 1) / math.sqrt(width // heads), -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(length, width)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _gelu_new(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def roberta_logits(
    weights: Weights, ids: np.ndarray, *, heads: int, layers: int, pad_id: int, epsilon: float
) -> np.ndarray:
    """Returns RobertaForMaskedLM's logits, float64[L, V], of one row of L tokens without padding."""
    length = len(ids)
    embeddings = "roberta.embeddings"
    x = (
        weights[f"{embeddings}.word_embeddings.weight"][ids]
        + weights[f"{embeddings}.position_embeddings.weight"][pad_id + 1 + np.arange(length)]
        + weights[f"{embeddings}.token_type_embeddings.weight"][0]
    ).astype(np.float64)
    x = _norm(x, weights, f"{embeddings}.LayerNorm", epsilon)
    for layer in range(layers):
        block = f"roberta.encoder.layer.{layer}"
        q, k, v = (
            _linear(x, weights, f"{block}.attention.self.{name}") for name in ("query", "key", "value")
        )
        attention = _attention(q, k, v, heads, np.ones((length, length), bool))
        x = x + _linear(attention, weights, f"{block}.attention.output.dense")
        x = _norm(x, weights, f"{block}.attention.output.LayerNorm", epsilon)
        hidden = _gelu(_linear(x, weights, f"{block}.intermediate.dense"))
        x = _norm(
            x + _linear(hidden, weights, f"{block}.output.dense"),
            weights,
            f"{block}.output.LayerNorm",
            epsilon,
        )
    x = _norm(_gelu(_linear(x, weights, "lm_head.dense")), weights, "lm_head.layer_norm", epsilon)
    return x @ weights[f"{embeddings}.word_embeddings.weight"].T + weights["lm_head.bias"]


def gpt2_logits(weights: Weights, ids: np.ndarray, *, heads: int, layers: int, epsilon: float) -> np.ndarray:
    """Returns GPT2LMHeadModel's logits, float64[L, V], of one row of L tokens."""
    length = len(ids)
    wte = weights["transformer.wte.weight"]
    x = (wte[ids] + weights["transformer.wpe.weight"][:length]).astype(np.float64)
    for layer in range(layers):
        block = f"transformer.h.{layer}"
        q, k, v = np.split(
            _conv1d(_norm(x, weights, f"{block}.ln_1", epsilon), weights, f"{block}.attn.c_attn"), 3, axis=-1
        )
        attention = _attention(q, k, v, heads, np.tri(length, dtype=bool))
        x = x + _conv1d(attention, weights, f"{block}.attn.c_proj")
        hidden = _gelu_new(_conv1d(_norm(x, weights, f"{block}.ln_2", epsilon), weights, f"{block}.mlp.c_fc"))
        x = x + _conv1d(hidden, weights, f"{block}.mlp.c_proj")
    return _norm(x, weights, "transformer.ln_f", epsilon) @ wte.T
