"""The lines that `prepare` prints about the dataset at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset import manifest
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted, megabytes
from tokenmill_reader.format.names import REPORT

# Hugging Face's tokenizers takes about ten times as long as an engine. Above these shares, it takes much of the time.
_MANY_DOCUMENTS, _MUCH_TEXT = 0.1, 0.01


def print_summary(config: PrepareConfig, output: str, seconds: float | None) -> None:
    """Prints a summary of a finished dataset.

    Args:
        config: The run's options.
        output: The dataset's folder, absolute.
        seconds: The duration of the run. None if the dataset was already finished.
    """
    total_bytes = 0
    for name in config.split_names:
        split_manifest = manifest.read_manifest(filesystem.join(output, name))
        totals = split_manifest["totals"]
        total_bytes += totals["bytes"]
        fill = totals["tokens"] / max(1, totals["tokens"] + totals["padding"])
        rows = f"{counted(totals['rows'], 'row')} of {split_manifest['max_length']} ({fill:.2%} full), "
        if split_manifest["max_length"] is None:
            rows = ""
        print(
            f"{name}: {counted(totals['documents'], 'document')}, {counted(totals['tokens'], 'token')}"
            f"{_describe_targets(totals)}, "
            f"{rows}{counted(len(split_manifest['shards']), 'shard')}"
        )
        if not totals["rows"]:
            print(f"{name}: WARNING: this split is empty: it received no document")
        elif totals["rows"] < (config.num_shards or 0):
            print(
                f"{name}: WARNING: --num_shards {config.num_shards}: this split has only {totals['rows']} rows, "
                "with one shard for each"
            )
    excluded = {
        name: count for name, count in split_manifest["excluded"].items() if count and name != "records"
    }
    if excluded:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in excluded.items())
        print(f"left out of {split_manifest['excluded']['records']:,} records: {counts}")
    if split_manifest.get("edited"):
        print(describe_edits(split_manifest["edited"]))
    for engine in split_manifest["engines"]:
        for line in _describe_engine(engine, total_bytes):
            print(line)
    if seconds is not None:
        print(
            f"{megabytes(total_bytes)} of text in {seconds:.1f} s ({total_bytes / 1e6 / seconds:.1f} MB/s): {output}"
        )
    if not config.console.quiet:
        print("\n".join(["", *_next_steps(config, output, split_manifest)]))


def _describe_targets(totals: Mapping[str, int]) -> str:
    return f" ({totals['targets'] / totals['tokens']:.1%} are targets)" if totals.get("targets") else ""


def _next_steps(config: PrepareConfig, output: str, split_manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines about the report and the commands that use a dataset."""
    folder, names = shlex.quote(output), config.split_names
    yield f"report  {filesystem.join(output, REPORT)}"
    yield f"browse  tokenmill browse {folder}"
    yield f"check   tokenmill verify {folder}"
    if split_manifest["max_length"] is None or config.output_format != "tfrecord":
        return  # tokenmill-trainer does not read it
    train = "train" if "train" in names else names[0]
    has_mask = split_manifest["tokenizer"]["special_token_ids"].get("mask") is not None
    model = f"--config tiny-{'mlm' if has_mask else 'clm'}"
    if config.has_targets:  # for fine-tuning
        model = "--model.init_from MODEL --objective clm"
    options = [model, f"--data.train {shlex.quote(filesystem.join(output, train))}"]
    if "validation" in names and train != "validation":
        options.append(f"--data.validation {shlex.quote(filesystem.join(output, 'validation'))}")
    yield f"train   tokenmill-trainer fit {' '.join(options)} --output_dir run"


def _describe_engine(engine: Mapping[str, Any], total_bytes: int) -> Iterator[str]:
    """Yields lines about an engine of the manifest: the documents that it encoded, and the part that HF encoded."""
    documents, hf_counts = engine["documents"], engine["left_to_hf"]
    if truncated := engine.get("truncated"):
        yield (
            f"{counted(truncated['documents'], 'conversation')} were too long for a row, and lost "
            f"{counted(truncated['tokens'], 'token')} (--overlong)"
        )
    if infilled := engine.get("infilled"):
        whole = (
            f"; {infilled['whole']:,} more stay whole, being too long for a row" if infilled["whole"] else ""
        )
        yield f"{counted(infilled['documents'], 'document')} were cut for infilling{whole}"
    if dropped := engine.get("dropped"):
        yield (
            f"WARNING: the tokenizer has no token for {counted(dropped['characters'], 'character')} of "
            f"{counted(dropped['documents'], 'document')}, and drops them"
        )
    encoded = f"{counted(documents, 'document')} encoded by"
    if engine["name"] == "hf":
        explanation = (
            f", since no faster engine gives the ids exactly: {next(iter(hf_counts['reasons']), '')}"
        )
        yield f"{encoded} Hugging Face's tokenizers {engine['version']}{explanation if hf_counts['documents'] else ''}"
        return
    line = f"{encoded} {engine['name']} {engine['version']}"
    if not hf_counts["documents"]:
        yield line
        return
    shares = hf_counts["documents"] / documents, hf_counts["bytes"] / max(1, total_bytes)
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in hf_counts["reasons"].items())
    yield (
        f"{line}; parts of {hf_counts['documents']:,} ({shares[0]:.2%}) by Hugging Face's tokenizers, "
        f"{shares[1]:.2%} of the text: {reasons}"
    )
    if shares[0] > _MANY_DOCUMENTS and shares[1] > _MUCH_TEXT:
        yield f"WARNING: this run was slow, since Hugging Face's tokenizers encoded {shares[1]:.0%} of the text"


def describe_edits(edited: Mapping[str, int]) -> str:
    """Describes the documents of which rules remove or mask passages, by the combination of rules."""
    counts = ", ".join(f"{count:,} by {rules}" for rules, count in edited.items())
    return f"edited documents: {counts}"
