"""XLA's rules for a program that a TPU can run, and where a traced step breaks them.

No condition may depend on data (unless as a branch on the device), no shape may depend on data, and the inputs must
have the same shape at every step.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.tpu_check.compiler import DoesNotCompile, Module, Program, called_graphs

CONDITION = "data-dependent condition"
SHAPE = "data-dependent shape"
INPUT_SHAPE = "changing input shape"
UNSUPPORTED = "operation without a TPU kernel"

# Operations of whose results the shape follows from the values that they are given.
_SHAPED_BY_DATA = frozenset(
    ("DynamicPartition", "ListDiff", "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3",
     "NonMaxSuppressionV4", "NonMaxSuppressionV5", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2",
     "Where")
)  # fmt: skip
_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (tf, keras))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A place where a rule is broken. One that is not fatal compiles, at a price."""

    rule: str
    what: str
    place: str
    """File, line and text of the Python that asks for it; empty where there is none."""
    fatal: bool = True

    def __str__(self) -> str:
        text = f"{self.rule}: {self.what}"
        return f"{text}\n    {self.place}" if self.place else text


def lower_checked(program: Program) -> tuple[Module | None, list[Finding]]:
    """A program's StableHLO and what is to be said of it; no module where a finding is fatal.

    Raises DoesNotCompile for a refusal that names no operation.
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
    """Inputs whose shape is not the same at every step."""
    return [
        Finding(
            rule=INPUT_SHAPE,
            what=f"input {name!r} has shape {spec.shape}: each new shape compiles the step anew",
            place="",
        )
        for name, spec in specs.items()
        if not spec.shape.is_fully_defined()
    ]


def trace(program: Program) -> tuple[tf.Graph | None, list[Finding]]:
    """The graph of a program, and what tracing finds; no graph where a Python `if` asks for a tensor's value."""
    try:
        return program.trace(), []
    except TypeError as error:
        if "bool" not in str(error) or "Tensor" not in str(error):
            raise
        what = "Python asks for the value of a tensor, which is known only on the device; use tf.where or tf.cond"
        return None, [Finding(rule=CONDITION, what=what, place=_place_of_error(error))]


def graph_findings(graph: tf.Graph) -> list[Finding]:
    """Conditions and shapes that depend on data, in a graph and all that it calls."""
    findings = []
    for operation in _operations(graph):
        where = f"{operation.type} `{operation.name}`"
        if operation.type in ("If", "StatelessIf", "Case", "StatelessCase"):
            if tf.get_static_value(operation.inputs[0]) is None:
                what = f"{where} is decided on the device: both sides are compiled, and neither overlaps with the rest"
                findings.append(Finding(rule=CONDITION, what=what, place=_place(operation), fatal=False))
        elif operation.type in _SHAPED_BY_DATA:
            shapes = ", ".join(str(output.shape) for output in operation.outputs)
            what = f"{where} gives shape {shapes}, which only the data decides; keep all elements and mask"
            findings.append(Finding(rule=SHAPE, what=what, place=_place(operation)))
    return findings


def refusal_findings(error: DoesNotCompile, graph: tf.Graph) -> list[Finding]:
    """Which operations a refusal is about; empty where it names none of the graph's."""
    message = str(error)
    named = set(re.findall(r"\{\{(?:function_)?node ([^}]+)\}\}", message))
    return [
        Finding(
            rule=UNSUPPORTED,
            what=f"{operation.type} `{operation.name}`: XLA cannot compile it for a TPU",
            place=place,
        )
        for operation in _operations(graph)
        if operation.name in named
        and (place := _place(operation))  # none: TensorFlow's own call of the whole
    ]


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    seen, queue = set(), [graph]
    while queue:
        current = queue.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for operation in current.get_operations():
            yield operation
            queue.extend(called_graphs(operation))


def _place(operation: tf.Operation) -> str:
    return _innermost((frame.filename, frame.lineno) for frame in operation.traceback)


def _place_of_error(error: BaseException) -> str:
    # AutoGraph raises anew, from a place of its own: the message tells where the error was.
    quoted = re.findall(r'File "([^"]+)", line (\d+), in ', str(error))
    if quoted:
        return _innermost((file, int(line)) for file, line in quoted)
    return _innermost((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))


def _innermost(frames: Iterable[tuple[str, int]]) -> str:
    """File, line and text of the innermost frame that is not TensorFlow's or Keras' own."""
    for file, line in reversed(list(frames)):
        if not file.startswith(_LIBRARIES) and Path(file).suffix == ".py":
            return f"{file}:{line}: {linecache.getline(file, line).strip()}"
    return ""
