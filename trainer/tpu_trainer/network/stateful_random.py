"""The rule that a training step is a function of its inputs: no operation in it draws from a generator with a state.

Such a state is in no checkpoint, so a resumed run would draw other numbers; and a block that gradient checkpointing
computes twice would draw another mask for its gradient than for its output.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


def refuse_stateful_random(graph: tf.Graph) -> None:
    """Raises RuntimeError if `graph`, or a function that it calls, draws random numbers from a state.

    The message names the operations, whose names begin with those of their layers.
    """
    found = sorted(f"{name} ({kind})" for name, kind in _operations(graph) if _draws_from_state(kind))
    if found:
        raise RuntimeError(
            f"the training step draws random numbers from a state that no checkpoint holds: {', '.join(found[:3])}"
            f"{f' and {len(found) - 3} more' if len(found) > 3 else ''}; a resumed run would differ, and gradient "
            "checkpointing would compute wrong gradients. Key the layer by row and step, as network/patches/dropout.py "
            "does, or set its rate to 0"
        )


def _operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """Names and types of the operations in `graph` and in its library of functions."""
    for operation in graph.get_operations():
        yield operation.name, operation.type
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            yield f"{function.signature.name}/{node.name}", node.op


def _draws_from_state(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    if definition is None or not definition.is_stateful or kind == "StatefulPartitionedCall":
        return False  # a call of a function: its own operations are looked at
    seeded = {"seed", "seed2"} & {attribute.name for attribute in definition.attr}
    return bool(seeded) or kind.startswith(("Stateful", "Rng", "NonDeterministic"))
