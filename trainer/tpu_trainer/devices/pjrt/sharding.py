"""Which axis of the mesh divides which dimension of each variable. Names are those in checkpoints.

Tensor parallelism as in Shoeybi et al., "Megatron-LM" (2019): the first matrix of a pair is divided by columns, the
second by rows, so that a pair needs one sum over the devices; embeddings and output layer are divided by vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpu_trainer.config.mesh import DATA, MODEL, MeshConfig
from tpu_trainer.support.errors import UsageError

Placement = tuple[str | None, ...]
"""For each dimension, the axis that divides it; None: it is not divided."""

_FIRST_DIMENSION, _LAST_DIMENSION, _UNDIVIDED = "first dimension", "last dimension", "not divided"
# What the `model` axis divides, for all model types of network/model_types.py. The first match counts. A bias is
# divided like the columns of its matrix.
_MODEL_RULES: tuple[tuple[str, str], ...] = (
    # The vocabulary: embeddings, a head with a matrix of its own, and the output bias.
    (r"/(word_embeddings|wte|embed_tokens|w|decoder)/(weight|embeddings)$", _FIRST_DIMENSION),
    (r"/transformer/embeddings/weight$", _FIRST_DIMENSION),
    (r"/lm_head/(kernel|bias)$", _LAST_DIMENSION),
    (r"/(predictions|decoder|vocab_projector|generator_lm_head|pred_layer_\._proj)/bias$", _LAST_DIMENSION),
    # Attention: queries, keys and values by heads.
    (r"/self/(query|key|value|in_proj)/", _LAST_DIMENSION),
    (r"/self/(query|key|value|pos|pos_q)_proj/", _LAST_DIMENSION),
    (r"/self/[qv]_bias$", _LAST_DIMENSION),
    (r"/([qkv]_lin|[qkv]_proj|c_attn|W[qkv])/", _LAST_DIMENSION),
    (r"/attention/output/dense/kernel$", _FIRST_DIMENSION),
    (r"/(out_lin|out_proj|o_proj|multi_head_attention/dense)/kernel$", _FIRST_DIMENSION),
    (r"/attn/c_proj/weight$", _FIRST_DIMENSION),
    # MLP.
    (r"/(intermediate/dense|lin1|c_fc|fc_in|fc1|gate_proj|up_proj|ffn/0)/", _LAST_DIMENSION),
    (r"/(output/dense|lin2|fc_out|fc2|down_proj|ffn/2)/kernel$", _FIRST_DIMENSION),
    (r"/mlp/c_proj/weight$", _FIRST_DIMENSION),
    # Each device has all of a second matrix's bias, of norms, of positions and types, and of the small layers between
    # embeddings, blocks and head.
    (r"/(dense|out_lin|out_proj|c_proj|lin2|fc_out|fc2|ffn/2)/bias$", _UNDIVIDED),
    (r"/(gamma|beta)$|norm/weight$|norm(\.|_)?\w*/weight$", _UNDIVIDED),
    (r"/(\w*position\w*|token_type_embeddings|wpe)/", _UNDIVIDED),
    (r"/rel_embeddings\.weight$", _UNDIVIDED),
    (r"/project_(in|out)/", _UNDIVIDED),
    (r"/(embeddings_project|embedding_hidden_mapping_in|vocab_transform)/", _UNDIVIDED),
    (r"/(transform|lm_head|generator_predictions|predictions)/dense/kernel$", _UNDIVIDED),
    (r"/conv/\w+$", _UNDIVIDED),
)
# A matrix or bias whose columns are queries, then keys, then values: see fused_projection.py.
_FUSED = re.compile(r"/c_attn/")
# A table whose rows are looked up.
_TABLE = re.compile(r"/(\w*embeddings?\w*|w[tp]e|embed_tokens|w)/(weight|embeddings)$")
# Smaller variables are not divided over `data`: gathering one costs more time than its bytes are worth.
_LEAST_ELEMENTS = 1024


def place_variables(
    shapes: Mapping[str, Sequence[int]], mesh: MeshConfig, *, data: int
) -> dict[str, Placement]:
    """Returns the placement of each variable of a checkpoint.

    Args:
        shapes: Name → shape.
        mesh: The options.
        data: Size of the mesh's `data` axis.

    Raises:
        UsageError: If no rule covers a variable, or an axis does not divide a dimension.
    """
    sizes = {DATA: data, MODEL: mesh.model}
    placements: dict[str, Placement] = {}
    problems: list[str] = []
    for pattern in mesh.rules:
        if not any(re.search(pattern, name) for name in shapes):
            problems.append(f"{pattern!r} matches no variable")
    for name, shape in shapes.items():
        placement = _placement(name, shape, mesh, data=data)
        if placement is None:
            problems.append(f"no rule for {name!r} {list(shape)}")
            continue
        if len(placement) != len(shape):
            problems.append(f"{name!r} has {len(shape)} dimensions, its rule {len(placement)}")
            continue
        # A dimension that an optimizer has reduced, as of a matrix's mean square by rows.
        placement = tuple(None if size == 1 else axis for axis, size in zip(placement, shape, strict=True))
        problems += [
            f"{axis} {sizes[axis]} does not divide dimension {dimension} of {name!r} {list(shape)}"
            for dimension, axis in enumerate(placement)
            if axis is not None and shape[dimension] % sizes[axis]
        ]
        placements[name] = placement
    if problems:
        omitted = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UsageError(
            f"the mesh of --mesh.data {data} and --mesh.model {mesh.model} does not fit the model: "
            f"{'; '.join(problems[:5])}{omitted}. Change the mesh, or divide these variables otherwise "
            "with --mesh.rules"
        )
    return placements


def _placement(name: str, shape: Sequence[int], mesh: MeshConfig, *, data: int) -> Placement | None:
    if not shape:
        return ()
    for pattern, axes in mesh.rules.items():
        if re.search(pattern, name):
            return tuple(axes)
    part, _, _ = name.partition("/")
    if part not in ("network", "optimizer", "average"):
        return (None,) * len(shape)  # the log's sums and the like
    placement: list[str | None] = [None] * len(shape)
    if mesh.model > 1:
        rule = next((rule for pattern, rule in _MODEL_RULES if re.search(pattern, name)), None)
        if rule is None:
            return None
        if rule != _UNDIVIDED:
            placement[0 if rule == _FIRST_DIMENSION else -1] = MODEL
    shards = mesh.fsdp in (True, "keep") or (mesh.fsdp == "zero" and part != "network")
    if shards and data > 1 and math.prod(shape) >= _LEAST_ELEMENTS:
        # The largest dimension that it divides. For a table, the last one: a device then needs its columns of the
        # gradients of all rows' tokens, not the whole gradients.
        largest_last = sorted(range(len(shape)), key=lambda index: shape[index])
        order = range(len(shape)) if _TABLE.search(name) else largest_last
        for dimension in reversed(order):
            if placement[dimension] is None and shape[dimension] % data == 0:
                placement[dimension] = DATA
                break
    return tuple(placement)


def is_fused(name: str) -> bool:
    """Whether devices of the `model` axis have the variable's columns in the order of fused_projection.grouped."""
    return _FUSED.search(name) is not None


def check_heads(config: Any, model: int) -> None:
    """Checks that the `model` axis divides the attention heads of a Hugging Face configuration.

    Raises:
        UsageError: If it does not: a device would need parts of other devices' heads.
    """
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is not None and heads % model:
            raise UsageError(f"--mesh.model is {model}: it must divide the model's {name}, {heads}")


def bytes_per_device(
    shapes: Mapping[str, Sequence[int]],
    placements: Mapping[str, Placement],
    sizes: Mapping[str, int],
    itemsize: int = 4,
) -> int:
    """Returns the bytes of variables on one device; `sizes` are those of the mesh's axes."""
    return sum(
        itemsize * math.prod(_local(shapes[name], placement, sizes)) for name, placement in placements.items()
    )


def _local(shape: Sequence[int], placement: Placement, sizes: Mapping[str, int]) -> Iterator[int]:
    for size, axis in zip(shape, placement, strict=True):
        yield size if axis is None else size // sizes[axis]
