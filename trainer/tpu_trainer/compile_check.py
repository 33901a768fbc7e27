"""The compile-check verb: compiles the training step with the TPU compiler, on a machine without a TPU."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_trainer import files
from tpu_trainer.chips import Topology
from tpu_trainer.config import CompileCheckConfig, FitConfig
from tpu_trainer.config_files import load_compile_check_config
from tpu_trainer.elapsed import elapsed
from tpu_trainer.errors import UsageError

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tpu_trainer.tpu_check.cache import Cache
    from tpu_trainer.tpu_check.mesh_step import MeshStep
    from tpu_trainer.tpu_check.step import ReplicaStep

# The upper bound of the search for the largest batch: more rows per replica than any training uses.
_LARGEST_REPLICA_ROWS = 1 << 16


def main(config: CompileCheckConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If the options are inconsistent or the step cannot be compiled for a TPU.
    """
    topology = Topology.parse(config.topology)
    named = _configs(config)
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("compile-check: starting TensorFlow and the TPU compiler"):
        from tpu_trainer.tpu_check.cache import Cache, default_folder
        from tpu_trainer.tpu_check.compiler import versions
        from tpu_trainer.tpu_check.figures import LIMITS, table

    found = versions()
    cache = Cache(folder=Path(config.cache) if config.cache else default_folder())
    columns = [(name, _report(one, topology, cache)) for name, one in named]
    print(table(columns))
    for name, report in columns:
        for finding in report["findings"]:
            print(f"{name}: {finding['rule']}: {finding['what']}\n    {finding['place']}")
    chip = topology.chip
    print(
        f"A {chip.name} chip: {chip.peak_flops / 1e12:,.0f} TFLOP/s in bfloat16, "
        f"{chip.hbm_bytes / 2**30:,.0f} GiB of HBM at {chip.hbm_bandwidth / 1e9:,.0f} GB/s ({chip.source}), "
        f"{chip.ici_bandwidth / 1e9:,.0f} GB/s to other chips ({chip.ici_source or chip.source}).\n{LIMITS}"
    )
    _log.info(f"compile-check: {cache.misses} compiled, {cache.hits} from {cache.folder}")
    if config.output is not None:
        document = {"versions": found, "reports": [{"name": name} | report for name, report in columns]}
        files.write_text(config.output, json.dumps(document, indent=1) + "\n")


def _configs(config: CompileCheckConfig) -> list[tuple[str, CompileCheckConfig]]:
    """Returns the name and configuration of each column of the table."""
    if config.compare is None:
        return [(config.topology, config)]
    own = {field.name for field in dataclasses.fields(CompileCheckConfig)}
    own -= {field.name for field in dataclasses.fields(FitConfig)}
    default = CompileCheckConfig()
    for field in dataclasses.fields(FitConfig):
        if getattr(config, field.name) != getattr(default, field.name):
            raise UsageError(
                f"--{field.name} cannot be combined with --compare: set it in the files that are compared "
                f"({', '.join(config.compare)})"
            )
    values = {name: getattr(config, name) for name in own}
    return [(path, dataclasses.replace(load_compile_check_config(path), **values)) for path in config.compare]


def _report(config: CompileCheckConfig, topology: Topology, cache: Cache) -> dict[str, Any]:
    from tpu_trainer.tpu_check.step import ReplicaStep, replica_rows, rows_of_dataset, rows_without_dataset

    pjrt = config.strategy == "pjrt"
    rows_of_a_replica = 0 if config.find_batch_size or pjrt else replica_rows(config, topology)
    if config.data.train:
        rows = rows_of_dataset(config)
    else:
        rows = rows_without_dataset(config, vocab_size=config.vocab_size, max_length=config.max_length)
    step: ReplicaStep | MeshStep
    with elapsed("compile-check: building the model"):
        if pjrt:
            from tpu_trainer.tpu_check.mesh_step import MeshStep
            from tpu_trainer.training.lowering_cache import LoweringCache, cache_folder

            lowered = LoweringCache(Path(config.cache) if config.cache else cache_folder("pjrt"))
            step = MeshStep(config=config, rows=rows, topology=topology, cache=lowered)
            if not config.find_batch_size:
                rows_of_a_replica = step.group_rows(config.train.batch_size)
        else:
            step = ReplicaStep(config=config, rows=rows, topology=topology)

    def check(replica_rows: int) -> dict[str, Any]:
        return _check(
            step, replica_rows, config=config, max_length=rows.max_length, topology=topology, cache=cache
        )

    if config.find_batch_size:
        return find_largest_batch(check, multiple=config.batch_multiple)
    return check(rows_of_a_replica)


def _check(
    step: ReplicaStep | MeshStep,
    replica_rows: int,
    *,
    config: CompileCheckConfig,
    max_length: int,
    topology: Topology,
    cache: Cache,
) -> dict[str, Any]:
    from tpu_trainer.tpu_check.compiler import DoesNotCompile, Executable
    from tpu_trainer.tpu_check.figures import figures
    from tpu_trainer.tpu_check.rules import check_and_lower

    mesh = step.mesh
    _log.info(
        f"compile-check: {config.model.type}, {replica_rows} rows of {max_length} tokens on each of "
        f"{mesh.data if mesh else topology.replicas} replica(s), {topology.name}"
    )
    try:
        with elapsed("compile-check: lowering the step"):
            module, findings = check_and_lower(step.program(replica_rows))
        if module is None:
            raise UsageError("the step cannot be compiled for a TPU:\n" + "\n".join(map(str, findings)))
        with elapsed("compile-check: compiling the step"):
            result = cache.compile(module, topology)
    except DoesNotCompile as error:
        message = f"the step cannot be compiled for {topology.name}:\n{str(error).split(chr(10) * 2)[0]}"
        # Mosaic is the compiler of kernels; vmem is their memory.
        if "Mosaic" in message or "memory space vmem" in message:
            message += (
                "\n--train.attention_kernel: not supported on this generation for such rows; leave it out"
            )
        raise UsageError(message) from error
    report = figures(
        result,
        topology=topology,
        replica_rows=replica_rows,
        max_length=max_length,
        model_flops=step.model_flops(replica_rows),
        mesh=mesh,
    )
    if config.hlo is not None and isinstance(result, Executable):
        path = files.join(config.hlo, f"{module.digest[:16]}-{topology.name.replace(':', '-')}.hlo.txt")
        files.make_dirs(config.hlo)
        files.write_text(path, result.hlo)
        report["hlo"] = path
    return report | {"findings": [dataclasses.asdict(finding) for finding in findings]}


def find_largest_batch(check: Callable[[int], dict[str, Any]], *, multiple: int) -> dict[str, Any]:
    """Finds the largest number of rows per replica that fits in memory and returns its report.

    Memory grows almost linearly with the rows. So each guess is the point at which the line through two reports
    reaches the available memory; every third guess bisects the remaining interval instead.

    Args:
        check: Returns the report for a number of rows.
        multiple: The result is a multiple of this number of rows, at least 1.

    Raises:
        UsageError: If not even `multiple` rows fit.
    """
    best, other = check(multiple), None  # the largest batch known to fit, and a second point on the line
    if not best["fits"]:
        hbm = best["hbm"]
        raise UsageError(
            f"not even {multiple} row(s) per replica fit: {hbm['needed'] / 1e9:,.2f} GB needed, "
            f"{hbm['available'] / 1e9:,.2f} GB available; use a smaller model, shorter rows or a lower --batch_multiple"
        )
    fits, too_many, tries = 1, _LARGEST_REPLICA_ROWS // multiple + 1, 0
    while too_many - fits > 1:
        guess = 2 * fits if other is None else _crossing(best, other) // multiple
        tries += 1
        if tries % 3 == 0 and not other["fits"]:
            guess = (fits + too_many) // 2
        guess = min(max(guess, fits + 1), too_many - 1)
        report = check(guess * multiple)
        if not report["fits"]:
            too_many, other = guess, report
        else:
            if other is None or other["fits"]:
                other = best
            fits, best = guess, report
    return best


def _crossing(fits: dict[str, Any], other: dict[str, Any]) -> int:
    """Returns the rows at which the line through the memory of two reports reaches the available memory."""
    slope = (other["hbm"]["needed"] - fits["hbm"]["needed"]) / (other["replica_rows"] - fits["replica_rows"])
    if slope <= 0:
        return 2 * fits["replica_rows"]
    return int(fits["replica_rows"] + (fits["hbm"]["available"] - fits["hbm"]["needed"]) / slope)
