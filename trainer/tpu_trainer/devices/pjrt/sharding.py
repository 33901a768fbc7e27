"""Which axis of the mesh divides which dimension of each variable. Names are those in checkpoints.

Tensor parallelism as in Shoeybi et al., "Megatron-LM" (2019): the first matrix of a pair is divided by outputs, the
second by inputs, so that a pair needs one sum over the devices; embeddings and output layer are divided by vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from tpu_trainer.config.mesh import EXPERT, MODEL, SHARDS, MeshConfig
from tpu_trainer.support.errors import UsageError

Placement = tuple[tuple[str, ...], ...]
"""For each dimension, the axes that divide it; none: it is not divided."""

# What the `model` axis divides: the outputs of a weight, its inputs or nothing. The first match counts. Weights have
# the shape [out, in] and biases [out], after an axis of layers and one of experts: each expert is divided like an MLP.
_OUT, _IN, _NOTHING = "outputs", "inputs", "nothing"
_MODEL_RULES: tuple[tuple[str, str], ...] = (
    (r"/(embeddings\.tokens|head)\.(weight|bias)$", _OUT),  # the vocabulary
    (r"/layers\.attention\.(query|key|value)\.(weight|bias)$", _OUT),  # by heads
    (r"/layers\.mlp\.(gate|up)\.(weight|bias)$", _OUT),
    (r"/layers\.(attention\.output|mlp\.down)\.weight$", _IN),
    # Each device has all of a second matrix's bias, of norms, of positions and types, and of the small layers between
    # embeddings, blocks and head.
    (r"/layers\.(attention\.output|mlp\.down)\.bias$", _NOTHING),
    (r"norm(_after)?\.(weight|bias)$", _NOTHING),
    (r"/(embeddings\.(positions|types|projection)|head\.transform)\.(weight|bias)$", _NOTHING),
    (r"/layers\.mlp\.router\.weight$", _NOTHING),
)
_STACKED = re.compile(r"/layers\.")
_LAYERS_AND_EXPERTS = re.compile(r"/layers\.mlp\.(gate|up|down)\.weight$")
# A table whose rows are looked up.
_TABLE = re.compile(r"/embeddings\.(tokens|positions|types)\.weight$")
# Smaller variables are not divided by fsdp: gathering one costs more time than its bytes are worth.
_LEAST_ELEMENTS = 1024


def whole(dimensions: int) -> Placement:
    """Returns the placement of an array that is not divided."""
    return ((),) * dimensions


def place_variables(shapes: Mapping[str, Sequence[int]], mesh: MeshConfig) -> dict[str, Placement]:
    """Returns the placement of each variable of a checkpoint.

    Args:
        shapes: Name → shape.
        mesh: The options, with the size of each axis.

    Raises:
        UsageError: If no rule covers a variable, or an axis does not divide a dimension.
    """
    sizes = mesh.sizes
    placements: dict[str, Placement] = {}
    problems: list[str] = []
    for pattern in mesh.rules:
        if not any(re.search(pattern, name) for name in shapes):
            problems.append(f"{pattern!r} matches no variable")
    for name, shape in shapes.items():
        placement = _placement(name, shape, mesh)
        if placement is None:
            problems.append(f"no rule for {name!r} {list(shape)}")
            continue
        if len(placement) != len(shape):
            problems.append(f"{name!r} has {len(shape)} dimensions, its rule {len(placement)}")
            continue
        # A dimension that an optimizer has reduced, as of a matrix's mean square by rows.
        placement = tuple(() if size == 1 else axes for axes, size in zip(placement, shape, strict=True))
        problems += [
            f"{' × '.join(axes)} {parts(axes, sizes)} does not divide dimension {dimension} of {name!r} {list(shape)}"
            for dimension, axes in enumerate(placement)
            if shape[dimension] % parts(axes, sizes)
        ]
        placements[name] = placement
    if problems:
        omitted = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UsageError(
            f"the mesh of {mesh.describe()} does not fit the model: "
            f"{'; '.join(problems[:5])}{omitted}. Change the mesh, or divide these variables otherwise "
            "with --mesh.rules"
        )
    return placements


def _placement(name: str, shape: Sequence[int], mesh: MeshConfig) -> Placement | None:
    if not shape:
        return ()
    for pattern, axes in mesh.rules.items():
        if re.search(pattern, name):
            return tuple(() if axis is None else (axis,) for axis in axes)
    part, _, _ = name.partition("/")
    if part not in ("network", "optimizer", "average"):
        return whole(len(shape))  # the log's sums and the like
    placement: list[tuple[str, ...]] = [()] * len(shape)
    if mesh.model > 1:
        rule = next((rule for pattern, rule in _MODEL_RULES if re.search(pattern, name)), None)
        if rule is None:
            return None
        if rule != _NOTHING:
            placement[-2 if rule == _OUT and name.endswith("weight") else -1] = (MODEL,)
    # A loop gathers the weights of one layer at a time: devices have the same layers.
    first = 1 if _STACKED.search(name) else 0
    axes = SHARDS
    if mesh.expert > 1 and len(shape) == 4 and _LAYERS_AND_EXPERTS.search(name):
        placement[1] = (EXPERT,)
        axes = tuple(axis for axis in SHARDS if axis != EXPERT)
    count = parts(axes, mesh.sizes)
    shards = mesh.fsdp in (True, "keep") or (mesh.fsdp == "zero" and part != "network")
    if shards and count > 1 and math.prod(shape[first:]) >= _LEAST_ELEMENTS:
        # The largest dimension that they divide. For a table, the last one: a device then needs its columns of the
        # gradients of all rows' tokens, not the whole gradients.
        largest_last = sorted(range(first, len(shape)), key=lambda index: shape[index])
        order = range(len(shape)) if _TABLE.search(name) else largest_last
        for dimension in reversed(order):
            if not placement[dimension] and shape[dimension] % count == 0:
                placement[dimension] = axes
                break
    return tuple(placement)


def is_sharded(placement: Placement) -> bool:
    """Returns whether devices gather a weight with this placement before they use it."""
    return gathered(placement) != placement


def gathered(placement: Placement) -> Placement:
    """Returns the placement of a weight that devices have gathered."""
    return tuple(axes if axes in ((MODEL,), (EXPERT,)) else () for axes in placement)


def parts(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Returns the number of parts into which axes of these sizes divide a dimension."""
    return math.prod(sizes[axis] for axis in axes)


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
    for size, axes in zip(shape, placement, strict=True):
        yield size // parts(axes, sizes)
