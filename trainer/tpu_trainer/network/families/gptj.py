"""GPT-J, whose attention and MLP have the same input."""

from __future__ import annotations

from tpu_trainer.network.architecture import (
    Architecture,
    Attention,
    Dropout,
    Head,
    Initial,
    Mlp,
    Norm,
    default_scale,
)
from tpu_trainer.network.families.common import uniform
from tpu_trainer.network.families.family import ConfigValues, Family
from tpu_trainer.network.frequencies import Rope, plain_frequencies


def _architecture(values: ConfigValues) -> Architecture:
    width, heads = values["n_embd"], values["n_head"]
    size, rotated, residual = width // heads, values["rotary_dim"], values["resid_pdrop"]
    if rotated % 2 or not 2 <= rotated <= size:
        raise values.error("rotary_dim", f"must be even and 2 to the head size, {size}")
    return Architecture(
        vocabulary=values["vocab_size"],
        width=width,
        causal=True,
        attention=Attention(heads=heads, key_heads=heads, head_size=size, scale=default_scale(size)),
        mlp=Mlp(
            size=values.get("n_inner", 4 * width),
            activation=values.activation("activation_function"),
            bias=True,
        ),
        norm=Norm(kind="layer", epsilon=values["layer_norm_epsilon"], bias=True),
        parallel=True,
        shared_norm=True,
        kinds=uniform(values["n_layer"], rope=0),
        ropes=(Rope(frequencies=tuple(map(float, plain_frequencies(rotated, 10000.0))), interleaved=True),),
        head=Head(bias=True),
        tied=values["tie_word_embeddings"],
        dropout=Dropout(
            embeddings=values["embd_pdrop"],
            probabilities=values["attn_pdrop"],
            attention=residual,
            mlp=residual,
        ),
        initial=Initial(weights=values["initializer_range"]),
    )


_LAYER = "transformer.h.{}"
FAMILY = Family(
    objective="clm",
    class_name="GPTJForCausalLM",
    architecture=_architecture,
    modules={
        "transformer.wte": "embeddings.tokens",
        f"{_LAYER}.ln_1": "layers.attention_norm",
        f"{_LAYER}.attn.q_proj": "layers.attention.query",
        f"{_LAYER}.attn.k_proj": "layers.attention.key",
        f"{_LAYER}.attn.v_proj": "layers.attention.value",
        f"{_LAYER}.attn.out_proj": "layers.attention.output",
        f"{_LAYER}.mlp.fc_in": "layers.mlp.up",
        f"{_LAYER}.mlp.fc_out": "layers.mlp.down",
        "transformer.ln_f": "final_norm",
        "lm_head.weight": "head.weight",
        "lm_head.bias": "head.bias",
    },
    copies=("lm_head",),
    # Published configurations have all but the first two; PyTorch's class does not use them.
    without_effect=frozenset((
        "n_positions", "use_cache", "rotary", "scale_attn_weights", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )),
    ignored_weights=(r"\.attn\.(masked_)?bias$",),
)  # fmt: skip
