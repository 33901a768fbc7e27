"""Checks that a traced step follows XLA's rules for TPUs.

Shapes must not depend on data. Conditions must not depend on data, except as branches on the device. Inputs must have
the same shape at every step.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from tpu_trainer.tpu_check.compiler import DoesNotCompile, called_graphs

CONDITION = "data-dependent condition"
SHAPE = "data-dependent shape"
INPUT_SHAPE = "changing input shape"
UNSUPPORTED = "operation without a TPU kernel"

# Operations whose output shape depends on the values of their inputs.
_SHAPED_BY_DATA = frozenset(
    ("DynamicPartition", "ListDiff", "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3",
     "NonMaxSuppressionV4", "NonMaxSuppressionV5", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2",
     "Where")
)  # fmt: skip
_TENSORFLOW = str(Path(tf.__file__).parent)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A violation of a rule."""

    rule: str
    problem: str
    place: str
    """File, line number and source line; empty if unknown."""
    fatal: bool = True
    """Whether the step cannot be compiled. Otherwise it compiles but is slower."""

    def __str__(self) -> str:
        text = f"{self.rule}: {self.problem}"
        return f"{text}\n    {self.place}" if self.place else text


class TraceableStep(Protocol):
    """A step that is traced and lowered once."""

    specs: Mapping[str, tf.TensorSpec]

    def trace(self) -> tf.Graph:
        """Returns the traced graph."""

    def lower(self) -> Any:
        """Returns the module; raises DoesNotCompile."""


def check_and_lower(program: TraceableStep) -> tuple[Any | None, list[Finding]]:
    """Checks a program and lowers it to StableHLO.

    Returns:
        The module, or None if a finding is fatal, and the findings.

    Raises:
        DoesNotCompile: If XLA rejects the program without naming an operation.
    """
    findings = input_findings(program.specs)
    if findings:
        return None, findings
    graph, findings = trace(program)
    if graph is None:
        return None, findings
    findings = graph_findings(graph)
    if any(finding.fatal for finding in findings):
        return None, findings
    try:
        return program.lower(), findings
    except DoesNotCompile as error:
        refused = refusal_findings(error, graph)
        if not refused:
            raise
        return None, findings + refused


def input_findings(specs: Mapping[str, tf.TensorSpec]) -> list[Finding]:
    """Finds inputs whose shape is not static."""
    return [
        Finding(
            rule=INPUT_SHAPE,
            problem=f"input {name!r} has shape {spec.shape}: every new shape recompiles the step",
            place="",
        )
        for name, spec in specs.items()
        if not spec.shape.is_fully_defined()
    ]


def trace(program: TraceableStep) -> tuple[tf.Graph | None, list[Finding]]:
    """Traces a program.

    Returns:
        The graph, or None if Python code needs the value of a tensor, as in an `if`, and the findings.
    """
    try:
        return program.trace(), []
    except TypeError as error:
        if "bool" not in str(error) or "Tensor" not in str(error):
            raise
        problem = (
            "Python needs the value of a tensor, which is known only on the device; use tf.where or tf.cond"
        )
        return None, [Finding(rule=CONDITION, problem=problem, place=_place_of_error(error))]


def graph_findings(graph: tf.Graph) -> list[Finding]:
    """Finds data-dependent conditions and shapes in a graph and the functions that it calls."""
    findings = []
    for operation in _operations(graph):
        where = f"{operation.type} `{operation.name}`"
        if operation.type in ("If", "StatelessIf", "Case", "StatelessCase"):
            if tf.get_static_value(operation.inputs[0]) is None:
                problem = f"{where} branches on the device: all branches are compiled, and none overlaps with the rest"
                findings.append(
                    Finding(rule=CONDITION, problem=problem, place=_place(operation), fatal=False)
                )
        elif operation.type in _SHAPED_BY_DATA:
            shapes = ", ".join(str(output.shape) for output in operation.outputs)
            problem = (
                f"{where} has shape {shapes}, which depends on the data; keep all elements and use a mask"
            )
            findings.append(Finding(rule=SHAPE, problem=problem, place=_place(operation)))
    return findings


def refusal_findings(error: DoesNotCompile, graph: tf.Graph) -> list[Finding]:
    """Finds the operations of the graph that XLA's error names."""
    message = str(error)
    named = set(re.findall(r"\{\{(?:function_)?node ([^}]+)\}\}", message))
    return [
        Finding(
            rule=UNSUPPORTED,
            problem=f"{operation.type} `{operation.name}`: XLA cannot compile it for a TPU",
            place=place,
        )
        for operation in _operations(graph)
        if operation.name in named
        and (place := _place(operation))  # empty for TensorFlow's call of the whole function
    ]


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    visited, queue = set(), [graph]
    while queue:
        current = queue.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        for operation in current.get_operations():
            yield operation
            queue.extend(called_graphs(operation))


def _place(operation: tf.Operation) -> str:
    return _innermost((frame.filename, frame.lineno) for frame in operation.traceback)


def _place_of_error(error: BaseException) -> str:
    # AutoGraph raises a new exception; the location of the error is only in its message.
    quoted = re.findall(r'File "([^"]+)", line (\d+), in ', str(error))
    if quoted:
        return _innermost((file, int(line)) for file, line in quoted)
    return _innermost((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))


def _innermost(frames: Iterable[tuple[str, int]]) -> str:
    """Returns file, line number and source line of the innermost frame outside of TensorFlow."""
    for file, line in reversed(list(frames)):
        if not file.startswith(_TENSORFLOW) and Path(file).suffix == ".py":
            return f"{file}:{line}: {linecache.getline(file, line).strip()}"
    return ""
