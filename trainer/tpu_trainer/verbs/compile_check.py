"""The compile-check verb: compiles the training step with the TPU compiler, on a machine without a TPU."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import CompileCheckConfig, FitConfig
from tpu_trainer.config.files import load_compile_check_config
from tpu_trainer.exports.initial_weights import resolve_init_from
from tpu_trainer.support import files
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)

# The upper bound of the search for the largest batch: more rows per replica than any training uses.
_LARGEST_REPLICA_ROWS = 1 << 16


def main(config: CompileCheckConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If the options are inconsistent or the step cannot be compiled for a TPU.
    """
    results = sys.stdout
    with redirect_stdout(sys.stderr) if config.json else nullcontext():
        document, error = _check(config)
    if config.json:
        print(json.dumps(document), file=results, flush=True)
    if error is not None:
        raise error


def _check(config: CompileCheckConfig) -> tuple[dict[str, Any], UsageError | None]:
    """Compiles, prints the figures, and writes them to the file of --output.

    Returns:
        The content of the file, and the error of a search that has no result.
    """
    topology = Topology.parse(config.topology)
    named = _configs(config)
    from tpu_trainer.network.configuration import check_model  # imports transformers, but not TensorFlow

    named = [(name, dataclasses.replace(one, model=resolve_init_from(one.model))) for name, one in named]
    for name, one in named:
        check_model(one.model, one.objective)
        if config.find_mesh and one.strategy != "pjrt":
            where = f"{name}: " if config.compare else "--"
            raise UsageError(
                f"{where}strategy is {one.strategy!r}: --find_mesh needs pjrt, which alone has a mesh"
            )
    _check_outputs(config)
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("compile-check: starting TensorFlow and the TPU compiler"):
        from tpu_trainer.tpu_check.cache import open_cache
        from tpu_trainer.tpu_check.check import StepCheck
        from tpu_trainer.tpu_check.compiler import devices_of, versions

    releases = versions()
    if config.find_mesh:
        devices_of(topology)
        return _find_meshes(named, topology, releases, config.output)
    cache = open_cache(config.cache)
    # All configurations are checked before the first one is compiled, which can take many minutes.
    checks = [StepCheck(one, topology=topology, cache=cache) for _, one in named]
    rows = [None if config.find_batch_size else check.configured_rows() for check in checks]
    devices_of(topology)
    columns = []
    for (name, one), check, configured in zip(named, checks, rows, strict=True):
        if configured is None:
            multiple = math.lcm(config.batch_multiple, one.train.accumulation)
            report = find_largest_batch(check.report, multiple=multiple)
        else:
            report = check.report(configured)
        columns.append((name, report))
    _show(columns, topology)
    _log.info(f"compile-check: {cache.misses} compiled, {cache.hits} from {cache.folder}")
    return _write(config.output, releases, [{"name": name} | report for name, report in columns]), None


def _check_outputs(config: CompileCheckConfig) -> None:
    """Raises UsageError if the local files of --output and --hlo cannot be written."""
    with _writing("output", config.output):
        if config.output is not None:
            files.check_writable(config.output)
    with _writing("hlo", config.hlo):
        if config.hlo is not None and not files.is_url(config.hlo):
            files.make_dirs(config.hlo)
            files.check_writable(files.join(config.hlo, "program.hlo.txt"))


@contextmanager
def _writing(option: str, path: str | None) -> Iterator[None]:
    """A context that writes to the path in an option; raises UsageError if that is impossible."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--{option} is {path!r}: cannot be written ({error}); use another path") from error


def _find_meshes(
    named: list[tuple[str, CompileCheckConfig]],
    topology: Topology,
    versions: dict[str, str],
    output: str | None,
) -> tuple[dict[str, Any], UsageError | None]:
    """Finds the mesh of each configuration. Returns what `_check` returns."""
    from tpu_trainer.tpu_check.find_mesh import MeshFinder, options

    documents, columns, failed = [], [], None
    for name, config in named:
        finder = MeshFinder(config, topology=topology)
        best = finder.run()
        document = {"name": name, "search": finder.document(best)}
        if best is None:
            failed = failed or finder.nothing_fits()
        else:
            columns.append((name, best.report))
            document |= best.report
            print(f"\n{name}:\n{options(best.candidate)}\n")
        documents.append(document)
    if columns:
        _show(columns, topology)
    return _write(output, versions, documents), failed


def _show(columns: list[tuple[str, dict[str, Any]]], topology: Topology) -> None:
    """Prints reports side by side."""
    from tpu_trainer.tpu_check.figures import LIMITS, table

    print(table(columns))
    for name, report in columns:
        for finding in report["findings"]:
            print(f"{name}: {finding['rule']}: {finding['problem']}\n    {finding['place']}")
    chip = topology.chip
    print(
        f"A {chip.name} chip: {chip.peak_flops / 1e12:,.0f} TFLOP/s in bfloat16, "
        f"{chip.hbm_bytes / 2**30:,.0f} GiB of HBM at {chip.hbm_bandwidth / 1e9:,.0f} GB/s ({chip.source}), "
        f"{chip.ici_bandwidth / 1e9:,.0f} GB/s to other chips ({chip.ici_source or chip.source}).\n{LIMITS}"
    )


def _write(path: str | None, versions: dict[str, str], reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes the file of --output, if there is one, and returns its content."""
    document = {"versions": versions, "reports": reports}
    if path is not None:
        with _writing("output", path):
            files.write_text(path, json.dumps(document, indent=1) + "\n")
    return document


def _configs(config: CompileCheckConfig) -> list[tuple[str, CompileCheckConfig]]:
    """Returns the name and configuration of each column of the table."""
    if config.compare is None:
        return [(config.topology, config)]
    names = {field.name for field in dataclasses.fields(CompileCheckConfig)}
    names -= {field.name for field in dataclasses.fields(FitConfig)}
    default = CompileCheckConfig().resolved()
    for field in dataclasses.fields(FitConfig):
        if getattr(config, field.name) != getattr(default, field.name):
            raise UsageError(
                f"--{field.name} cannot be combined with --compare: set it in the files that are compared "
                f"({', '.join(config.compare)})"
            )
    values = {name: getattr(config, name) for name in names}
    return [(path, dataclasses.replace(load_compile_check_config(path), **values)) for path in config.compare]


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
