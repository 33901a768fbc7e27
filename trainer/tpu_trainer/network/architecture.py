"""The shape of a network: what its layers compute, in the trainer's own terms. The families translate to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tpu_trainer.network.frequencies import Rope

Activation = Literal[
    "gelu", "gelu_tanh", "gelu_fast", "quick_gelu", "relu", "relu2", "silu", "sigmoid", "tanh", "mish"
]
NormPlace = Literal["before", "after", "before and after", "sum"]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalization over the last axis, in float32."""

    kind: Literal["layer", "rms"]
    epsilon: float
    bias: bool = False
    offset: float = 0.0
    """Added to the weight. 1 for Gemma, whose weights start at 0."""
    weight: bool = True


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Self-attention. Each group of `heads ÷ key_heads` query heads shares a key and a value head."""

    heads: int
    key_heads: int
    head_size: int
    scale: float
    """Factor of the scores."""
    bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    output_bias: bool = False
    norm: Norm | None = None
    """Normalizes queries and keys before the rotation; None: nothing does."""
    norm_heads: bool = True
    """Whether `norm` normalizes each head by itself, with weights that the heads share, or all heads together."""
    soft_cap: float | None = None
    """c: scores s become c · tanh(s ÷ c)."""


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """down(f(up(x))), or if gated down(f(gate(x)) · up(x))."""

    size: int
    activation: Activation
    gated: bool = False
    bias: bool = False
    experts: int | None = None
    """Experts of `size`, of which a router chooses `chosen_experts` for each token; None: a single MLP for all."""
    chosen_experts: int = 0
    normalize_choice: bool = False
    """Whether the weights of a token's chosen experts are divided by their sum."""
    balance_loss: float = 0.0
    """Factor of the load-balancing loss."""


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """What may differ from layer to layer."""

    window: int | None = None
    """Queries see keys less than this many positions away; None: all."""
    rope: int | None = None
    """Index into `Architecture.ropes`; None: no rotation."""
    scale: float = 1.0
    """A further factor of the scores."""
    norm_attention: bool = True
    """Whether the norm before attention applies."""


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Rates."""

    embeddings: float = 0.0
    probabilities: float = 0.0
    """Of attention."""
    attention: float = 0.0
    """Of attention's output."""
    inner: float = 0.0
    """Within the MLP, before its last matrix."""
    mlp: float = 0.0
    """Of the MLP's output."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Learned embeddings of absolute positions."""

    count: int
    first: int = 0
    """Row of a document's first token."""
    padding: int | None = None
    """Row of padding; None: padding is counted like tokens."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What maps the last hidden states to logits. Its matrix is the embedding's if `Architecture.tied`."""

    bias: bool = False
    transform: bool = False
    """Whether a dense layer comes first."""
    transform_bias: bool = True
    activation: Activation | None = None
    """After the dense layer."""
    norm: Norm | None = None
    soft_cap: float | None = None
    """c: logits l become c · tanh(l ÷ c)."""


@dataclass(frozen=True, kw_only=True)
class Initial:
    """Standard deviations of the normal distributions of the initial weights."""

    weights: float = 0.02
    residual: float | None = None
    """Of the matrices whose products are added to the hidden states; None: as the others."""
    embeddings: float | None = None
    """None: as the others."""
    head: float | None = None
    """Of the head's matrices; None: as the others."""
    cutoff: float | None = None
    """Values farther than this many deviations from 0 are drawn again, which narrows the distribution; None: none."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A stack of equal layers between embeddings and a head.

    Example: Llama's layer is x += attention(norm(x)); x += mlp(norm(x)), with rotated queries and keys.
    """

    vocabulary: int
    width: int
    """Of the hidden states, H."""
    causal: bool
    attention: Attention
    mlp: Mlp
    norm: Norm
    norm_place: NormPlace = "before"
    """before: of a part's input; after: of its output; sum: of the hidden states after the output is added."""
    parallel: bool = False
    """Whether attention and MLP have the same input and their outputs are added together."""
    shared_norm: bool = False
    """Whether attention and MLP share the norm before them."""
    final_norm: bool = True
    kinds: tuple[LayerKind, ...] = field(default=())
    """For each layer."""
    ropes: tuple[Rope, ...] = ()
    positions: Positions | None = None
    token_types: int = 0
    """Rows of the table of token types, of which all tokens have type 0."""
    embedding_width: int | None = None
    """Of the embeddings, if they are projected to `width`."""
    embedding_norm: Norm | None = None
    embedding_scale: float = 1.0
    projection_bias: bool = False
    """Of the projection of the embeddings."""
    head: Head = field(default_factory=Head)
    tied: bool = True
    dropout: Dropout = field(default_factory=Dropout)
    initial: Initial = field(default_factory=Initial)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.kinds)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows of the layers."""
        return tuple(dict.fromkeys(kind.window for kind in self.kinds))

    @property
    def head_width(self) -> int:
        """Of the input of the output matrix."""
        return self.width if self.embedding_width is None else self.embedding_width


def default_scale(head_size: int) -> float:
    """Returns 1 / √D, as in Vaswani et al., "Attention is all you need" (2017)."""
    return 1 / math.sqrt(head_size)
