"""Checks that a training step is a pure function of its inputs, without stateful random operations.

Checkpoints do not contain the state of random generators, so a resumed run would draw different numbers. A block that
gradient checkpointing recomputes would use different dropout masks for its output and its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


def refuse_stateful_random(graph: tf.Graph) -> None:
    """Raises RuntimeError if `graph`, or a function that it calls, has stateful random operations.

    The message has the operations' names, which begin with their layers' names.
    """
    operations = sorted(f"{name} ({kind})" for name, kind in _operations(graph) if _draws_from_state(kind))
    if operations:
        names = ", ".join(operations[:3]) + (
            f" and {len(operations) - 3} more" if len(operations) > 3 else ""
        )
        raise RuntimeError(
            f"the training step draws random numbers from a state that is not in checkpoints: {names}; a resumed run "
            "would differ, and gradient checkpointing would compute wrong gradients. Derive the layer's bits from row "
            "and step, as network/patches/dropout.py does, or set its rate to 0"
        )


def _operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """Yields names and types of the operations in `graph` and in its function library."""
    for operation in graph.get_operations():
        yield operation.name, operation.type
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            yield f"{function.signature.name}/{node.name}", node.op


def _draws_from_state(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    if definition is None or not definition.is_stateful or kind == "StatefulPartitionedCall":
        return False  # a function call: the function's operations are checked themselves
    seeded = {"seed", "seed2"} & {attribute.name for attribute in definition.attr}
    return bool(seeded) or kind.startswith(("Stateful", "Rng", "NonDeterministic"))
