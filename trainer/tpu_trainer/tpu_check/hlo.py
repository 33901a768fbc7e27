"""Parses the text of an optimized HLO module: memory traffic, FLOPs and loops of its operations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from tpu_trainer.tpu_check.convolution import convolution_flops
from tpu_trainer.tpu_check.slices import read_part, written_parts

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "token": 0, "f8e4m3fn": 8, "f8e5m2": 8, "c64": 64}
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.$-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.$-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
# With the thread of the computation, if that is not the main one.
_COMPUTATION_END = re.compile(r"^\}(, execution_thread=.*)?$")
_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{[^}]*"flops":"(\d+)"')
COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
# These move no bytes themselves: their operands are counted at their uses or in the called computation.
_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all",
     "partition-id", "replica-id", "opt-barrier", "copy-done", "async-done", "slice-done",
     *(f"{kind}-done" for kind in COLLECTIVES))
)  # fmt: skip
_ALLOCATION = 'custom_call_target="AllocateBuffer"'

# Their results are (operands, results, contexts). That of all-reduce-start is not.
_ASYNCHRONOUS = ("async-start", "async-update", "all-gather-start", "collective-permute-start")


@dataclass(frozen=True)
class Size:
    """Bytes of a value."""

    total: int
    hbm: int
    """The part in HBM. The rest is in on-chip memory."""


def _sides(dimensions: str) -> list[int]:
    """Parses the shape in an array's type, such as `16,<=32`."""
    return [int(side.lstrip("<=")) for side in dimensions.split(",") if side]


def _size(arrays: Iterable[tuple[str, str, str]]) -> Size:
    """Returns the size of matches of _ARRAY."""
    total = hbm = 0
    for dtype, dimensions, layout in arrays:
        bits = _BITS.get(dtype) or (int(match[0]) if (match := re.search(r"\d+", dtype)) else 0)
        size = math.prod(_sides(dimensions)) * bits // 8
        total += size
        hbm += 0 if "S(" in layout else size  # S(1): vector memory, S(2) and up: scalar memory and flags
    return Size(total, hbm)


def _part(arrays: list[tuple[str, str, str]], elements: int | None) -> Size:
    """Returns the size of some elements of an array; None: of all."""
    whole = _size(arrays)
    if elements is None:
        return whole
    share = elements / math.prod(_sides(arrays[0][1]))
    return Size(round(whole.total * share), round(whole.hbm * share))


def _elements(tuple_type: str) -> list[str]:
    """Returns the types of a tuple's elements."""
    elements, depth, start = [], 0, 1
    for index, character in enumerate(tuple_type):
        if character in ",)}]" and depth == 1:
            elements.append(tuple_type[start:index])
            start = index + 1
        depth += (character in "([{") - (character in ")]}")
    return elements


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    type: str
    rest: str
    """Operands and attributes."""

    @cached_property
    def size(self) -> Size:
        """The size of the result."""
        return _size(_ARRAY.findall(self.type))

    @property
    def elements(self) -> int:
        """The number of elements of the result, an array."""
        return math.prod(_sides(_ARRAY.search(self.type)[2]))

    @cached_property
    def operands(self) -> list[str]:
        """Names of the operands."""
        depth, end = 1, len(self.rest)
        for index, character in enumerate(self.rest):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                end = index
                break
        return re.findall(r"%([\w.$-]+)", self.rest[:end])

    def called(self, attribute: str) -> str | None:
        """Returns the computation in an attribute such as `body`; None if there is no such attribute."""
        return self.attribute(rf"\b{attribute}=\{{?%([\w.$-]+)")

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of a regular expression for an attribute; None if it does not match."""
        match = re.search(pattern, self.rest)
        return match[1] if match else None

    @property
    def chain(self) -> str | None:
        """The collective of which the instruction is a part, if the compiler repeats it in several fusions."""
        return self.attribute(r'\bchain_id="(\d+)"') if self.opcode in COLLECTIVES else None

    @property
    def op_name(self) -> str:
        """The TensorFlow operation it was lowered from; empty if the compiler added it."""
        return self.attribute(r'op_name="([^"]*)"') or ""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop that the compiler did not unroll."""

    name: str
    trips: int | None
    """Number of iterations; None if it is not a constant in the module."""
    flops: float
    """Per iteration."""
    bytes_accessed: float
    """Per iteration."""


@dataclass(kw_only=True)
class HloModule:
    """A parsed HLO module."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""

    @classmethod
    def parse(cls, text: str) -> HloModule:
        """Parses the output of XLA's `HloModule::ToString`."""
        module = cls()
        current: list[Instruction] = []
        for line in text.splitlines():
            if match := _INSTRUCTION.match(line):
                current.append(Instruction(name=match[1], type=match[2], opcode=match[3], rest=match[4]))
            elif match := _COMPUTATION.match(line):
                current = module.computations.setdefault(match[1], [])
                if line.startswith("ENTRY"):
                    module.entry = match[1]
            elif _COMPUTATION_END.match(line):
                current = []
            elif current:
                # Attributes go on after a line break: JAX writes one into what it says of its kernels.
                current[-1] = replace(current[-1], rest=f"{current[-1].rest}\n{line}")
        if not module.entry:
            raise ValueError("no ENTRY computation: not the text of an HLO module")
        return module

    def executed(self, *, fusions: bool = False) -> Iterator[tuple[Instruction, int]]:
        """Yields each instruction with the number of times it runs.

        Loops with an unknown number of iterations count once; of conditionals, see `_branches`.

        Args:
            fusions: Whether to include the instructions in fusions and in those of asynchronous instructions.
        """
        yield from self._executed(self.entry, 1, fusions)

    def _executed(
        self, computation: str, times: int, fusions: bool = False
    ) -> Iterator[tuple[Instruction, int]]:
        for instruction in self.computations[computation]:
            yield instruction, times
            if instruction.opcode == "while":
                trips = self._trips(instruction) or 1
                yield from self._executed(instruction.called("body"), times * trips, fusions)
            elif instruction.opcode == "call":
                yield from self._executed(instruction.called("to_apply"), times, fusions)
            elif instruction.opcode == "conditional":
                for branch in self._branches(instruction):
                    yield from self._executed(branch, times, fusions)
            elif fusions and instruction.opcode in ("fusion", "async-start"):
                yield from self._executed(instruction.called("calls"), times, fusions)
            elif fusions and (called := instruction.called("called_computations")):
                yield from self._executed(called, times, fusions)

    def _branches(self, conditional: Instruction) -> list[str]:
        """Returns the computations of a conditional that count.

        Of branches that all have matrix products, such as attention with different windows, that is the one with the
        fewest: the figures are what a step takes at least.
        """
        called = re.findall(r"%([\w.$-]+)", conditional.rest.split("), ", 1)[-1])
        branches = [name for name in called if name in self.computations]
        flops = [
            sum(self.flops(each) * times for each, times in self._executed(name, 1)) for name in branches
        ]
        return [branches[flops.index(min(flops))]] if min(flops, default=0) > 0 else branches

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Name → instruction. Names are unique within a module."""
        return {each.name: each for instructions in self.computations.values() for each in instructions}

    def traffic(self, instruction: Instruction) -> Size:
        """Returns the bytes that an instruction reads and writes.

        Operands of a fusion count in full, except those of which it reads or replaces only a slice of dynamic place.
        """
        if instruction.opcode in _FREE or _ALLOCATION in instruction.rest:
            return Size(0, 0)
        operands = [self.by_name[name] for name in instruction.operands if name in self.by_name]
        sizes = [each.size for each in (instruction, *operands)]
        if instruction.opcode in ("slice", "dynamic-slice", "gather"):
            sizes = [instruction.size] * 2
        elif instruction.opcode == "dynamic-update-slice":
            sizes = [sizes[2]] * 2  # the update is in place
        elif instruction.opcode == "fusion" and self._is_part_of_collective(instruction):
            sizes = self._own_parts(instruction)
        elif instruction.opcode == "fusion":
            sizes = self._fusion_parts(instruction)
        elif self._started_opcode(instruction) == "copy":
            array = sizes[1]  # copy-start returns (target, source, context): one read and one write
            return Size(2 * array.total, array.hbm + max(0, instruction.size.hbm - array.hbm))
        elif self._started_opcode(instruction) == "slice":
            # slice-start returns ((source), target, context). It reads as many bytes of the source as the target has.
            source, whole = sizes[1], instruction.size
            target = Size(whole.total - source.total, whole.hbm - source.hbm)
            return Size(2 * target.total, target.hbm + (target.total if source.hbm else 0))
        elif instruction.opcode in _ASYNCHRONOUS:
            sizes = [_size(arrays) for arrays in self._arrays(instruction)]
        return Size(sum(size.total for size in sizes), sum(size.hbm for size in sizes))

    def _arrays(self, instruction: Instruction) -> list[list[tuple[str, str, str]]]:
        """Returns the operands and the results of one of _ASYNCHRONOUS.

        An instruction for the SparseCore has them in its update if its start has none.
        """
        started = self.by_name[instruction.operands[0]] if instruction.opcode == "async-update" else None
        if started is not None and any(self._arrays(started)):
            return []
        return [_ARRAY.findall(element) for element in _elements(instruction.type)[:2]]

    def _is_part_of_collective(self, fusion: Instruction) -> bool:
        """Whether a fusion starts, continues or ends a collective that overlaps with matrix products."""
        return any(each.chain for each in self.computations[fusion.called("calls")])

    def _own_parts(self, fusion: Instruction) -> list[Size]:
        """Returns the sizes of a fusion's operands and results without those that it only hands on.

        The fusion that starts a collective writes the result, the one that ends it reads the operand; all between hand
        both on.
        """
        # output_to_operand_aliasing={{0}: (0, {})}; {} is a result that is no tuple.
        aliases = re.findall(r"\{(\d*)\}: \((\d+), \{\}\)", fusion.rest)
        results = {int(result or 0) for result, _ in aliases}
        operands = {int(operand) for _, operand in aliases}
        own = [_size([array]) for i, array in enumerate(_ARRAY.findall(fusion.type)) if i not in results]
        names = [name for i, name in enumerate(fusion.operands) if i not in operands]
        return own + [self.by_name[name].size for name in names if name in self.by_name]

    def _fusion_parts(self, fusion: Instruction) -> list[Size]:
        """Returns the sizes of what a fusion reads of its operands and writes of its results."""
        computation = fusion.called("calls")
        results = _elements(fusion.type) if fusion.type.startswith("(") else [fusion.type]
        sizes = [
            _part(_ARRAY.findall(result), part)
            for result, part in zip(results, written_parts(self, computation), strict=True)
        ]
        for number, name in enumerate(fusion.operands):
            if name in self.by_name:
                arrays = _ARRAY.findall(self.by_name[name].type)
                sizes.append(_part(arrays, read_part(self, computation, number)))
        return sizes

    def _started_opcode(self, instruction: Instruction) -> str | None:
        """Returns the opcode that an asynchronous instruction starts; None for synchronous ones.

        The compiler's dump has either `copy-start`, or `async-start` of a computation that contains the copy.
        """
        if instruction.opcode == "async-start":
            return self.computations[instruction.called("calls")][-1].opcode
        return instruction.opcode.removesuffix("-start") if instruction.opcode.endswith("-start") else None

    def flops(self, instruction: Instruction) -> float:
        """Returns the FLOPs of an instruction's matrix products. For a kernel, its own cost estimate."""
        if instruction.opcode == "convolution":
            return self._product_flops(instruction)
        if instruction.opcode == "custom-call" and (match := _KERNEL_FLOPS.search(instruction.rest)):
            return float(match[1])
        called = instruction.called("calls") if instruction.opcode == "fusion" else None
        return sum(map(self.flops, self.computations[called])) if called else 0.0

    def _product_flops(self, instruction: Instruction) -> float:
        arrays = (*(self.by_name[name] for name in instruction.operands[:2]), instruction)
        shapes = [_sides(_ARRAY.search(array.type)[2]) for array in arrays]
        return convolution_flops(instruction.rest, *shapes)

    def loops(self) -> list[Loop]:
        """Returns the loops, outermost first."""
        loops = []
        for instruction, _ in self.executed():
            if instruction.opcode == "while":
                body = list(self._executed(instruction.called("body"), 1))
                loops.append(
                    Loop(
                        name=instruction.op_name or instruction.name,
                        trips=self._trips(instruction),
                        flops=sum(self.flops(inner) * times for inner, times in body),
                        bytes_accessed=sum(self.traffic(inner).total * times for inner, times in body),
                    )
                )
        return loops

    def repetition_cost(self, cost: Callable[[Instruction], float]) -> float:
        """Returns the cost of all iterations of loops except the first ones."""
        return sum(cost(instruction) * (times - 1) for instruction, times in self.executed() if times > 1)

    def _trips(self, loop: Instruction) -> int | None:
        """Returns the iterations of a loop: the constant that its condition compares the counter with. None if unknown.

        Assumes that the counter starts at 0.
        """
        condition, queue = [], [loop.called("condition")]
        while queue:
            for instruction in self.computations[queue.pop()]:
                condition.append(instruction)
                inner = instruction.called("calls") or instruction.called("to_apply")
                if inner:
                    queue.append(inner)
        if sum(instruction.opcode == "compare" for instruction in condition) != 1:
            return None
        constants = [
            int(match[1])
            for instruction in condition
            if instruction.opcode == "constant" and (match := re.match(r"(\d+)\)", instruction.rest))
        ]
        return -(-max(constants) // self._step(loop, condition)) if constants else None

    def _step(self, loop: Instruction, condition: list[Instruction]) -> int:
        """Returns the increment of a loop's counter: above 1 in loops that the compiler has unrolled in part."""
        indexes = [each.rest for each in condition if each.opcode == "get-tuple-element"]
        results = self.computations[loop.called("body")][-1]
        if len(indexes) == 1 and results.opcode == "tuple":
            number = int(re.search(r"\bindex=(\d+)", indexes[0])[1])
            counter = self.by_name[results.operands[number]]
            if counter.opcode == "add":
                for name in counter.operands:
                    if match := re.match(r"(\d+)\)", self.by_name[name].rest):
                        return int(match[1])
        return 1
