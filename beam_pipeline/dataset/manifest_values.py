"""Checks the values of a manifest on which reading its dataset depends: they must be consistent with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset.shards import shard_name
from beam_pipeline.rows.routing import Layout


def value_defects(manifest: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    """Yields a message for each contradiction. The manifest's form must be correct.

    Args:
        manifest: The manifest.
        layout: The layout that follows from it.
    """
    yield from _split_defects(manifest)
    yield from _id_defects(manifest["tokenizer"])
    yield from _shard_defects(manifest, layout)


def _split_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    splits = manifest["config"]["splits"]
    names, shares = [name for name, _ in splits], [share for _, share in splits]
    if len(set(names)) < len(names):
        yield f"config.splits: {max(names, key=names.count)!r} occurs twice"
    if manifest["splits"] != names:
        yield f"splits is {manifest['splits']!r:.200}, but config.splits has {names!r:.200}"
    if manifest["split"] not in names:
        yield f"split is {manifest['split']!r}, which is not one of its splits {names!r:.200}"
    if abs(sum(shares) - 1) > 1e-9:
        yield f"config.splits: the shares are {shares!r:.200}; they do not add up to 1"


def _id_defects(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    special = [value for value in tokenizer["special_token_ids"].values() if value is not None]
    for name, values in (
        ("special_token_ids", special),
        *((name, tokenizer[name]) for name in ("all_special_ids", "control_ids")),
    ):
        if max(values, default=0) >= tokenizer["vocab_size"]:
            yield f"tokenizer.{name} has the id {max(values)}, but there are {tokenizer['vocab_size']} ids"


def _shard_defects(manifest: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    """Checks the number, names and sizes of the shards, which follow from the layout."""
    records = sum(shard["records"] for shard in manifest["shards"])
    if manifest["num_records"] != records:
        yield f"num_records is {manifest['num_records']}, but its shards have {records} records"
    if len(manifest["shards"]) != layout.num_shards:
        yield f"it has {len(manifest['shards'])} shards, but {layout.num_rows} records make {layout.num_shards}"
        return
    output_format = manifest.get("output_format", "tfrecord")
    for number, shard in enumerate(manifest["shards"]):
        records = layout.records_in(number)
        if shard["records"] != records:
            yield f"shards[{number}] has {shard['records']} records, but must have {records}"
        name = shard_name(manifest["split"], number, shard["records"], output_format)
        if shard["name"] != name:
            yield f"shards[{number}] is named {shard['name']!r}, not {name!r}"
