"""The collectives of an optimized HLO module: their number, and the bytes that each device sends."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from tpu_trainer.tpu_check.hlo import COLLECTIVES, HloModule, Instruction

# The compiler's name of a fusion that replaces a reduce-scatter: an all-reduce of which each device keeps a part.
_REDUCE_SCATTER_FUSION = "all-reduce-scatter"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The collectives of one kind."""

    kind: str
    """A permutation is often a step of an all-gather or reduce-scatter that overlaps with a matrix product."""
    count: int
    bytes: int
    """Bytes of the whole arrays: results of all-gathers, operands of the others."""
    sent: int
    """Bytes that a device sends, if it sends no more than it must."""


def collectives(module: HloModule) -> list[Collective]:
    """Returns the collectives of a device by kind.

    libtpu splits an asynchronous collective into a start, the fusions that overlap with it, and an end, each of which
    repeats it with the same `chain_id`.
    """
    reduce_scatters = {
        each.name
        for name, instructions in module.computations.items()
        if name.startswith(_REDUCE_SCATTER_FUSION)
        for each in instructions
    }
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    chains: set[tuple[str, str]] = set()
    for instruction, times in module.executed(fusions=True):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        if instruction.chain is not None:
            chain = (kind, instruction.chain)
            if chain in chains:
                continue
            chains.add(chain)
        if instruction.name in reduce_scatters:
            kind = "reduce-scatter"
        operands = sum(module.by_name[name].size.total for name in instruction.operands)
        group = _group_size(instruction)
        whole = operands * group if kind == "all-gather" else operands
        count[kind] += times
        size[kind] += whole * times
        share = (group - 1) / group
        factor = {"all-reduce": 2 * share, "collective-permute": 1}.get(kind, share)
        sent[kind] += round(whole * factor) * times
    return [
        Collective(kind=kind, count=count[kind], bytes=size[kind], sent=sent[kind]) for kind in sorted(count)
    ]


def _group_size(instruction: Instruction) -> int:
    """Returns the number of devices that exchange values with each other."""
    if instruction.opcode.startswith("collective-permute"):
        return 2
    if listed := instruction.attribute(r"replica_groups=\{\{([\d,]+)\}"):
        return listed.count(",") + 1
    if iota := instruction.attribute(r"replica_groups=\[\d+,(\d+)\]<="):
        return int(iota)
    # mesh['data'=2,'model'=4] {'model'}; the mesh can have device_ids; a part of an axis is 'data':(offset)size.
    match = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\(.*?\))? \{(.*?)\}", instruction.rest)
    if match is None:
        raise ValueError(f"unknown groups of devices: {instruction.rest[:300]}")
    mesh, axes = match.groups()
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", axes)
    return math.prod(int(part) if part else sizes[name] for name, part in parts)
