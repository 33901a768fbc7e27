"""Differences between the options and the data of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tpu_trainer.comparison.compared_run import ComparedRun

ABSENT = "–"
TOKENIZERS_DIFFER = (
    "The tokenizers differ, so a token of one run is not one of another: compare bits per byte."
)
_NOT_COMPARED = (
    *("--output_dir", "--hub_model_id", "--hub_private", "--strict", "--track"),
    *("--data.train", "--data.validation", "--data.tokenizer", "--data.fingerprint"),
)
"""Options that say nothing of the model, and paths of the data, which has a table of its own."""


@dataclass(frozen=True)
class Difference:
    """A row of a table with a column for each run."""

    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def differing_options(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Returns the options with different values, as YAML. Each entry of a mapping, such as model.config, is one."""
    values = [dict(_leaves(run.options)) for run in runs]
    names = dict.fromkeys(name for each in values for name in each)
    rows = [Difference(name, [each.get(name, ABSENT) for each in values]) for name in names]
    return [row for row in rows if row.differs and not row.name.startswith(_NOT_COMPARED)]


def data_of(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Returns a row for each split that a run uses: its share, size, and the start of its fingerprint."""
    splits = [_named_splits(run.data) for run in runs]
    names = dict.fromkeys(name for each in splits for name in each)
    return [
        Difference(name, [_split(each[name]) if name in each else ABSENT for each in splits])
        for name in sorted(names)
    ]


def _named_splits(data: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns use and name → entry, with a number if others have the same."""
    splits: dict[str, Mapping[str, Any]] = {}
    for entry in data:
        name, number = f"{entry['use']}: {entry['name']}", 1
        while (unique := name if number == 1 else f"{name}#{number}") in splits:
            number += 1
        splits[unique] = entry
    return splits


def _split(entry: Mapping[str, Any]) -> str:
    share = "" if entry.get("share") is None else f"{entry['share']:.1%}, "
    return f"{share}{entry['rows']:,} rows of {entry['max_length']:,}, {entry['fingerprint'][:8]}"


def _leaves(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if isinstance(value, dict) and value:
            yield from _leaves({f"{name}.{key}": item for key, item in value.items()})
        else:
            yield (
                name,
                yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip(),
            )


def cautions(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the reasons for which losses of these runs do not say which model is better."""
    reasons = []
    if len({run.tokenizer for run in runs} - {None}) > 1:
        reasons.append(TOKENIZERS_DIFFER)
    if len({run.options["--objective"] for run in runs}) > 1:
        reasons.append("The objectives differ: masked and causal models predict other tokens.")
    fingerprints: dict[str, set[str]] = {}
    for run in runs:
        for entry in run.data:
            if entry["use"].startswith("validation"):
                fingerprints.setdefault(entry["use"], set()).add(entry["fingerprint"])
    if any(len(each) > 1 for each in fingerprints.values()):
        reasons.append("The validation data differ.")
    return reasons
