"""Checks that the values in a manifest are consistent with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.records import feature_names
from tokenmill_reader.format.manifest import fingerprint_of
from tokenmill_reader.format.names import SCHEMA, STATISTICS, UNITS


def manifest_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each contradiction in a manifest, whose form must be correct."""
    yield from manifests.value_defects(manifest)
    expected = _expected_values(manifest)
    for key, value in expected.items():
        if manifest.get(key) != value:
            yield f"{key} is {manifest.get(key)!r}, but {value!r} follows from the rest of the manifest"
    totals, excluded = manifest["totals"], manifest["excluded"]
    if totals["rows"] != manifest["num_records"]:
        yield f"totals.rows is {totals['rows']}, num_records is {manifest['num_records']}"
    if manifest["max_length"] is None:
        if totals["padding"]:
            yield f"totals.padding is {totals['padding']}, but documents have no padding"
    elif totals["tokens"] + totals["padding"] != totals["rows"] * manifest["max_length"]:
        yield (
            f"totals: {totals['tokens']} tokens and {totals['padding']} padding do not add up to {totals['rows']} rows "
            f"of {manifest['max_length']}"
        )
    documents = documents_read(excluded)
    if totals["documents"] > documents or (len(manifest["splits"]) == 1 and totals["documents"] != documents):
        yield f"totals.documents is {totals['documents']}, but {documents} of the records became documents"
    targets = totals.get("targets", 0)
    if ("targets" in totals) != ("loss_mask" in manifest["features"] and totals["rows"] > 0):
        yield f"totals has targets, or lacks them, but the features are {manifest['features']}"
    if targets > totals["tokens"]:
        yield f"totals.targets is {targets}, of {totals['tokens']} tokens"
    listed_names = {file["path"] for file in manifest["files"]}
    for name in sorted({STATISTICS, UNITS, SCHEMA} - listed_names):
        yield f"files does not name {name}"
    if all(file["path"] != "tokenizer.json" for file in manifest["tokenizer"]["files"]):
        yield "tokenizer.files does not name tokenizer.json"
    yield from _engine_defects(manifest)


def documents_read(excluded: Mapping[str, int]) -> int:
    """Returns the number of documents in all splits of the run."""
    return excluded["records"] - sum(count for name, count in excluded.items() if name != "records")


def _engine_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks the engines' counts of encoded documents."""
    engines = manifest["engines"]
    keys = [(engine["name"], engine["version"]) for engine in engines]
    if keys != sorted(set(keys)):
        yield f"engines: {keys} are not sorted, or not different"
    documents = sum(engine["documents"] for engine in engines)
    config, excluded = manifest["config"], manifest["excluded"]
    expected = most = documents_read(excluded)
    if (
        "loss_mask" in manifest["features"]
    ):  # they are encoded before they turn out to be too long, or without a target
        most += excluded["bad_records"] + excluded.get("overlong_documents", 0)
    elif config.get("fim_rate"):  # some are encoded in three parts, and then perhaps whole
        most = 4 * (expected + excluded["bad_records"])
    if not expected <= documents <= most:
        yield f"engines: encoded {documents} documents, but {expected} of the records became documents"
    removed = manifest.get("removed", {})
    if sum(removed.values()) != excluded.get("removed_documents", 0):
        yield f"removed: {removed} does not add up to excluded.removed_documents"
    edited = manifest.get("edited", {})
    if (
        not all(type(count) is int and count > 0 for count in edited.values())
        or sum(edited.values()) > expected
    ):
        yield f"edited: {edited} is impossible for {expected} documents"
    overlong = config.get("overlong") or ""
    if "overlong_documents" in excluded and overlong != "drop":
        yield f"excluded.overlong_documents: {excluded['overlong_documents']}, although --overlong was not drop"
    for number, engine in enumerate(engines):
        hf_counts = engine["left_to_hf"]
        counts = list(hf_counts["reasons"].values())
        if not all(type(count) is int and 0 < count <= hf_counts["documents"] for count in counts):
            yield f"engines[{number}].left_to_hf.reasons: {hf_counts['reasons']} are not counts of documents"
        elif hf_counts["documents"] > min(engine["documents"], sum(counts), hf_counts["bytes"]):
            yield f"engines[{number}].left_to_hf: {hf_counts} is impossible for {engine['documents']} documents"
        dropped = engine.get("dropped")
        truncated = engine.get("truncated")
        if truncated and not overlong.startswith("truncate_"):
            yield f"engines[{number}].truncated: {truncated}, although --overlong did not truncate"
        if truncated and not 0 < truncated["documents"] <= min(engine["documents"], truncated["tokens"]):
            yield f"engines[{number}].truncated: {truncated} is impossible for {engine['documents']} documents"
        infilled = engine.get("infilled")
        if infilled and (sum(infilled.values()) > expected or not config.get("fim_rate")):
            yield f"engines[{number}].infilled: {infilled} is impossible for {expected} documents"
        if dropped and not 0 < dropped["documents"] <= min(engine["documents"], dropped["characters"]):
            yield f"engines[{number}].dropped: {dropped} is impossible for {engine['documents']} documents"


def _expected_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that follow from other values."""
    config = manifest["config"]
    features = {name: config[name] for name in ("attention_mask", "segment_ids", "position_ids")}
    features["loss_mask"] = config.get("content") == "conversation"
    expected = {
        "shard_size": config["shard_size"],
        "seed": config["seed"],
        "features": list(feature_names(**features)),
        "output_format": config.get("output_format"),
        "ids_column": config.get("ids_column"),
        "rows_checksum": f"{sum(int(shard['rows_checksum'], 16) for shard in manifest['shards']) % 2**64:016x}",
        "fingerprint": fingerprint_of(
            manifest["bytes_version"], config, manifest["inputs"], manifest["tokenizer"]
        ),
    }
    return expected
