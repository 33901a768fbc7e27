"""Reads attributes that `annotate` stored, and decides by them: `--attributes DIR --keep EXPRESSION`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.curation.attributes import text_checksums
from beam_pipeline.curation.decisions import Decided
from beam_pipeline.curation.expressions import Expression
from beam_pipeline.curation.removals import Removals
from beam_pipeline.dataset.attribute_files import plan_digest, read_record, read_unit_file, schema_of
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError, UsageError
from tokenmill_reader.console.spelling import suggestion

KEEP = "keep"
"""The rule that removes documents for which `--keep` is not true."""

_SAMPLED_UNITS = 64


class UnitAttributes:
    """Reads the attributes of documents, one unit after the other."""

    def __init__(self, folder: str):
        self._folder = folder
        self._unit: tuple[int, pa.Table] | None = None

    @cached_property
    def _record(self) -> dict[str, Any]:
        return read_record(self._folder)

    def _read(self, unit: int) -> pa.Table:
        """Returns the attributes of a unit, which may have only missing values of some, or none."""
        table = read_unit_file(self._folder, unit, self._record["fingerprint"])
        schema = schema_of(self._record)
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.schema.names
            else pa.nulls(len(table), field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def samples(self, units: int) -> Iterator[pa.Table]:
        """Yields the attributes of so many evenly spaced units."""
        numbers = np.unique(np.linspace(0, self._record["units"] - 1, units).astype(int))
        yield from map(self._read, numbers.tolist())

    def of_batch(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> pa.Table:
        """Returns the attributes of a batch as it was read, whose first document has the number `first` in the unit.

        Raises:
            DataError: If the texts have changed since.
        """
        if self._unit is None or self._unit[0] != unit.index:
            self._unit = unit.index, self._read(unit.index)
        table = self._unit[1].slice(first, len(batch.texts))
        is_same = len(table) == len(batch.texts) and all(
            np.array_equal(table[name].to_numpy(), values)
            for name, values in (("place", batch.places), ("checksum", text_checksums(batch.texts)))
        )
        if not is_same:
            raise DataError(
                f"{unit.root}{batch.name}: has changed since annotate measured it; run annotate again with --overwrite"
            )
        return table


class KeepByAttributes:
    """Removes documents for which an expression over their attributes is not true. See `decisions.Decision`."""

    def __init__(self, folder: str, expression: str):
        self._attributes = UnitAttributes(folder)
        self._expression = Expression(expression)

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        table = self._attributes.of_batch(unit, batch, first)
        dropped = np.flatnonzero(~self._expression.mask(table))
        evidence = table.select(self._expression.names).take(pa.array(dropped)).to_pylist()
        if not self._expression.names:
            evidence = [{}] * len(dropped)
        return Decided(Removals.of_rule(KEEP, dropped, np.full(len(dropped), np.nan), evidence))


class KeptShares(NamedTuple):
    """The shares of the documents, and of their bytes, for which an expression is true."""

    documents: float
    bytes: float


def kept_shares(config: CurationConfig) -> KeptShares:
    """Returns what `--keep` keeps of evenly spaced work units, of which it reads the attributes."""
    expression = Expression(config.keep)
    totals, kept = np.zeros(2), np.zeros(2)
    for table in UnitAttributes(config.attributes).samples(_SAMPLED_UNITS):
        sizes = np.stack([np.ones(len(table)), table["bytes"].to_numpy()])
        totals += sizes.sum(axis=1)
        kept += sizes[:, expression.mask(table)].sum(axis=1)
    return KeptShares(*(kept / np.maximum(totals, 1)).tolist())


def check_attributes(
    folder: str, units: tuple[WorkUnit, ...], *, expression: str | None, preferred: str | None
) -> None:
    """Checks the options `--attributes`, `--keep` and `--dedup_keep` before a run.

    Args:
        folder: The folder of attributes.
        units: The work units.
        expression: That of `--keep`.
        preferred: The attribute by which `--dedup_keep` chooses.

    Raises:
        UsageError: If there are no attributes of these work units, or the expression does not suit them, or the
            attribute is not a number.
    """
    record = read_record(folder)
    if record["plan"] != plan_digest(units):
        raise UsageError(
            f"--attributes {folder}: are of other files, or of files that were divided into other work units; use the "
            f"same --input and --unit_bytes ({record['config']['unit_bytes']}), or run annotate again"
        )
    schema = schema_of(record)
    if expression is not None:
        Expression(expression).check(schema)
    if preferred is not None:
        numbers = [field.name for field in schema if is_number(field.type)]
        if preferred not in numbers:
            raise UsageError(
                f"--dedup_keep {preferred}: is neither first, longest nor a number among the attributes"
                f"{suggestion(preferred, numbers)}; these are {', '.join(numbers)}"
            )


def is_number(data_type: pa.DataType) -> bool:
    """Determines whether values of a type have an order as numbers."""
    return pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_boolean(data_type)
