"""The report of compile-check: whether a step fits in memory, and lower bounds of its cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from tpu_trainer.config.mesh import MeshConfig, shown
from tpu_trainer.support.chips import Chip, Topology
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.compiler import Executable, OutOfMemory
from tpu_trainer.tpu_check.hlo import COLLECTIVES, HloModule

LIMITS = (
    "Not shown: the real step time (the least step time assumes that every unit runs at its published peak, and that "
    "collectives overlap with computation), the input pipeline, and the overhead of several hosts."
)


def figures(
    result: Executable | OutOfMemory,
    *,
    topology: Topology,
    replica_rows: int,
    max_length: int,
    model_flops: float,
    mesh: MeshConfig | None = None,
) -> dict[str, Any]:
    """Returns the report. Bytes, FLOPs and seconds are per device and step; tokens/s are of all devices.

    Args:
        result: The compiler's result.
        topology: The devices.
        replica_rows: Rows of a replica. With a mesh, of a group of devices that share rows.
        max_length: Tokens in a row.
        model_flops: Model FLOPs of a device.
        mesh: The mesh, with the size of each axis; None: each device has a replica.
    """
    replicas = topology.replicas if mesh is None else mesh.row_groups
    common = {
        "topology": topology.name,
        "mesh": None if mesh is None else mesh.sizes | {"fsdp": mesh.fsdp},
        "replicas": replicas,
        "replica_rows": replica_rows,
        "max_length": max_length,
        "chip": _chip(topology.chip),
    }
    if isinstance(result, OutOfMemory):
        hbm = {"needed": result.needed, "available": result.available}
        if result.arguments is not None:
            hbm["arguments"] = result.arguments
        return common | {"fits": False, "hbm": hbm}
    module = HloModule.parse(result.hlo)
    exchanged = collectives(module)
    costs = _costs(result, module)
    return common | {
        "fits": True,
        "hbm": _hbm(result, topology.chip),
        **costs,
        "intensity": costs["flops"] / costs["hbm_traffic"],
        "roofline": roofline(
            topology,
            flops=costs["flops"],
            hbm_traffic=costs["hbm_traffic"],
            sent=sum(collective.sent for collective in exchanged),
            model_flops=model_flops,
            tokens=replica_rows * max_length * replicas,
        ),
        "collectives": [asdict(collective) for collective in exchanged],
        "loops": [asdict(loop) for loop in module.loops()],
    }


def _chip(chip: Chip) -> dict[str, Any]:
    return {
        "name": chip.name,
        "replicas": chip.devices,
        "peak_flops": chip.peak_flops,
        "hbm_bytes": chip.hbm_bytes,
        "hbm_bandwidth": chip.hbm_bandwidth,
        "ici_bandwidth": chip.ici_bandwidth,
        "source": chip.source,
    }


def _hbm(result: Executable, chip: Chip) -> dict[str, float]:
    outputs = result.outputs - result.aliased
    return {
        "needed": result.arguments + outputs + result.temporaries + result.code,
        "arguments": result.arguments,
        "outputs": outputs,
        "temporaries": result.temporaries,
        "code": result.code,
        "available": chip.hbm_bytes / chip.devices,
    }


def _costs(result: Executable, module: HloModule) -> dict[str, float]:
    # XLA's cost analysis counts the body of a loop once.
    flops = result.flops + module.repetition_cost(module.flops)
    bytes_accessed = result.bytes_accessed + module.repetition_cost(
        lambda instruction: module.traffic(instruction).total
    )
    # Arrays in on-chip memory do not use HBM bandwidth.
    hbm_traffic = float(sum(module.traffic(each).hbm * times for each, times in module.executed()))
    return {"flops": flops, "bytes_accessed": bytes_accessed, "hbm_traffic": hbm_traffic}


def roofline(
    topology: Topology, *, flops: float, hbm_traffic: float, sent: float, model_flops: float, tokens: int
) -> dict[str, Any]:
    """Returns bounds of step time, throughput and MFU by the roofline model.

    Williams, Waterman and Patterson, "Roofline" (2009).

    Args:
        topology: The devices.
        flops: Of a device.
        hbm_traffic: Bytes that a device reads and writes.
        sent: Bytes that a device sends to others.
        model_flops: Of a device.
        tokens: Of all devices.
    """
    chip = topology.chip
    peak, bandwidth = chip.peak_flops / chip.devices, chip.hbm_bandwidth / chip.devices
    seconds = {"compute": flops / peak, "memory": hbm_traffic / bandwidth}
    # The devices of a single chip do not use links between chips.
    links = topology.ici_bandwidth / chip.devices
    seconds["communication"] = sent / links if links else 0.0
    bound = max(seconds, key=seconds.get)
    least = seconds[bound]
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "least_step_seconds": least,
        "bound_by": bound,
        "tokens_per_second": tokens / least,
        "model_flops": model_flops,
        "mfu_bound": model_flops / (least * peak),
    }


def table(columns: list[tuple[str, dict[str, Any]]]) -> str:
    """Formats reports side by side, with one line per figure."""
    lines = [("", [name for name, _ in columns])]
    for label, read in _LINES:
        values = [read(report) if read is not None else "" for _, report in columns]
        if any(values):
            lines.append((label, values))
    label_width = max(len(label) for label, _ in lines)
    widths = [max(len(line[1][i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            [label.ljust(label_width), *(v.rjust(w) for v, w in zip(values, widths, strict=True))]
        ).rstrip()
        for label, values in lines
    )


def _size(value: float) -> str:
    return f"{value / 1e9:,.2f} GB" if value >= 1e8 else f"{value / 1e6:,.2f} MB"


def _figure(*path: str, form: Any = _size) -> Any:
    def read(report: dict[str, Any]) -> str:
        value: Any = report
        for name in path:
            if name not in value:
                return ""
            value = value[name]
        return form(value)

    return read


def _collective(kind: str) -> Any:
    def read(report: dict[str, Any]) -> str:
        matching = [each for each in report.get("collectives", []) if each["kind"] == kind]
        return "".join(f"{each['count']:,} of {_size(each['bytes'])}" for each in matching)

    return read


def _sent(report: dict[str, Any]) -> str:
    exchanged = report.get("collectives", [])
    return _size(sum(each["sent"] for each in exchanged)) if exchanged else ""


def _mesh(report: dict[str, Any]) -> str:
    mesh = report["mesh"]
    if mesh is None:
        return ""
    sharded = {True: ", fsdp", False: "", "zero": ", zero", "keep": ", keep"}[mesh["fsdp"]]
    return " × ".join(f"{axis} {size}" for axis, size in shown(mesh).items()) + sharded


def _loops(report: dict[str, Any]) -> str:
    # A deep model has hundreds of loops.
    counts = Counter("?" if loop["trips"] is None else str(loop["trips"]) for loop in report.get("loops", []))
    return ", ".join(trips if count == 1 else f"{trips} ({count} loops)" for trips, count in counts.items())


_LINES = (
    ("fits", _figure("fits", form=lambda fits: "yes" if fits else "NO")),
    ("mesh", _mesh),
    ("rows × tokens of a replica", lambda r: f"{r['replica_rows']} × {r['max_length']}"),
    ("HBM needed", _figure("hbm", "needed")),
    ("  arguments (weights, optimizer, batch)", _figure("hbm", "arguments")),
    ("  results not written over arguments", _figure("hbm", "outputs")),
    ("  temporaries", _figure("hbm", "temporaries")),
    ("  code", _figure("hbm", "code")),
    ("HBM of the chip, for a replica", _figure("hbm", "available")),
    ("FLOPs", _figure("flops", form=lambda v: f"{v / 1e12:,.3f} TFLOP")),
    ("bytes accessed", _figure("bytes_accessed")),
    ("  to and from HBM", _figure("hbm_traffic")),
    ("arithmetic intensity", _figure("intensity", form=lambda v: f"{v:,.1f} FLOP/byte")),
    ("time at peak FLOP/s", _figure("roofline", "compute_seconds", form=lambda v: f"{v * 1e3:,.2f} ms")),
    ("time at peak bandwidth", _figure("roofline", "memory_seconds", form=lambda v: f"{v * 1e3:,.2f} ms")),
    (
        "time at peak ICI bandwidth",
        _figure("roofline", "communication_seconds", form=lambda v: f"{v * 1e3:,.2f} ms"),
    ),
    ("least step time", _figure("roofline", "least_step_seconds", form=lambda v: f"{v * 1e3:,.2f} ms")),
    ("bound by", _figure("roofline", "bound_by", form=str)),
    ("tokens/s at most, all replicas", _figure("roofline", "tokens_per_second", form=lambda v: f"{v:,.0f}")),
    ("MFU at most", _figure("roofline", "mfu_bound", form=lambda v: f"{v:.1%}")),
    ("sent to other devices", _sent),
    *((f"  {kind}", _collective(kind)) for kind in COLLECTIVES),
    ("trips of loops", _loops),
)
