"""The filters of `--filter`: their names, and decisions made of their rules and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_pipeline.curation import c4, fineweb, gopher, repetition
from beam_pipeline.curation.decisions import Decided, Decision
from beam_pipeline.curation.measuring import MeasuredTexts, Rule
from beam_pipeline.curation.words import WordSplitter
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support import extras
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion

RULES = {module.RULE.name: module.RULE for module in (gopher, repetition, c4, fineweb)}
"""The published filters, by name."""


@dataclass(frozen=True)
class RuleDecision:
    """Removes the texts that break a limit of a rule, and edits the others if the rule does."""

    rule: Rule
    bounds: Mapping[str, float]
    splitter: WordSplitter

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        if not batch.texts:
            return Decided()
        measured = self.rule.measure(MeasuredTexts(batch.texts, self.splitter), self.bounds)
        removals = self.rule.removals(measured.measures, self.bounds)
        if measured.texts is None:
            return Decided(removals)
        texts = list(measured.texts)
        for document in removals.documents.tolist():
            texts[document] = batch.texts[document]
        return Decided(removals, texts)


def check_filters(names: Sequence[str], thresholds: Mapping[str, float]) -> None:
    """Checks the options `--filter` and `--thresholds` before a run.

    Raises:
        UsageError: If a package is missing, or a threshold is not one of these filters'.
    """
    if not RULES.keys().isdisjoint(names):
        extras.require("filters", f"--filter {','.join(names)}")
    known = [f"{name}.{bound}" for name in names if name in RULES for bound in RULES[name].defaults]
    for name in thresholds:
        if name not in known:
            raise UsageError(
                f"--thresholds {name}: is not a threshold of --filter {','.join(names)}"
                f"{suggestion(name, known)}; they are {', '.join(known) or 'none'}"
            )


def bounds_of(rule: Rule, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the limits and settings of a rule by name, where `thresholds` has them by `rule.name`."""
    return {name: thresholds.get(f"{rule.name}.{name}", default) for name, default in rule.defaults.items()}


def make_filters(names: Sequence[str], thresholds: Mapping[str, float]) -> list[Decision]:
    """Returns the decisions of these filters, in their order. The arguments are those of `check_filters`."""
    splitter = WordSplitter()
    return [RuleDecision(RULES[name], bounds_of(RULES[name], thresholds), splitter) for name in names]
