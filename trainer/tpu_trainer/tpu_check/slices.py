"""The bytes that a fusion moves of arrays of which it uses slices: layers run in loops over stacked arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_trainer.tpu_check.hlo import HloModule, Instruction

_SAME_ELEMENTS = frozenset(("bitcast", "convert", "copy", "reshape"))


def read_part(module: HloModule, computation: str, number: int) -> int | None:
    """Returns the elements of a parameter that a fused computation reads; None: all.

    A parameter into which only a slice is written, in place, is not read.
    """
    instructions = module.computations[computation]
    parameter = next(each for each in instructions if each.opcode == "parameter" and _number(each) == number)
    total = 0
    queue = [parameter.name]
    while queue:
        name = queue.pop()
        for user in instructions:
            operands = user.operands
            if name not in operands:
                continue
            if user.opcode == "dynamic-slice":
                total += user.elements
            elif user.opcode == "bitcast":
                queue.append(user.name)
            elif user.opcode == "fusion":
                part = read_part(module, user.called("calls"), operands.index(name))
                if part is None:
                    return None
                total += part
            elif user.opcode != "dynamic-update-slice" or operands.index(name) != 0:
                return None
    return total


def written_parts(module: HloModule, computation: str) -> Iterator[int | None]:
    """Yields the elements that a fused computation writes of each of its results; None: all."""
    result = module.computations[computation][-1]
    names = result.operands if result.opcode == "tuple" else [result.name]
    for name in names:
        yield _written(module, module.by_name[name])


def _written(module: HloModule, result: Instruction) -> int | None:
    while result.opcode in _SAME_ELEMENTS:
        result = module.by_name[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return module.by_name[result.operands[1]].elements
    if result.opcode == "fusion":
        parts = list(written_parts(module, result.called("calls")))
        return parts[0] if len(parts) == 1 else None
    return None


def _number(parameter: Instruction) -> int:
    return int(parameter.rest.partition(")")[0])
