"""The filters of `--filter`: their checks before a run, and decisions made of their rules and thresholds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from beam_pipeline.curation import c4, fineweb, gopher, repetition
from beam_pipeline.curation.decisions import Decided, Decision
from beam_pipeline.curation.functions import UserFunction
from beam_pipeline.curation.language import MIN_PROBABILITY, KeepLanguages, LanguageModel
from beam_pipeline.curation.measuring import MeasuredTexts, Rule
from beam_pipeline.curation.pii import MaskPersonalData
from beam_pipeline.curation.restore import Restored
from beam_pipeline.curation.urls import BlockList, BlockUrls
from beam_pipeline.curation.words import WordSplitter
from beam_pipeline.options.curation_options import ATTRIBUTES_RECORD, CurationConfig
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support import extras, filesystem
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion

RULES = {module.RULE.name: module.RULE for module in (gopher, repetition, c4, fineweb)}
"""The published filters, by name."""

THRESHOLDS = {name: rule.defaults for name, rule in RULES.items()} | {
    "language": {"min_probability": MIN_PROBABILITY}
}
"""The thresholds of each filter that has any, with their defaults."""

_BLOCK = 1 << 20


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


def check_filters(config: CurationConfig, *, measures_only: bool = False) -> None:
    """Checks the options of filters before a run; with `measures_only`, those that decide are not needed.

    Raises:
        UsageError: If a package, file or option is missing, or a threshold is not one of these filters'.
    """
    names = config.filter
    if not RULES.keys().isdisjoint(names):
        extras.require("filters", f"--filter {','.join(names)}")
    if "language" in names:
        if not config.languages and not measures_only:
            raise UsageError("--filter language: --languages is missing, e.g. --languages en,de")
        for code in config.languages:
            if config.language_model is None and not re.fullmatch("[a-z]{2,3}", code):
                raise UsageError(
                    f"--languages {','.join(config.languages)}: {code!r} is no code, such as en or de"
                )
        LanguageModel(config.language_model).check()
    if "urls" in names and config.url_block_list is None:
        raise UsageError(
            "--filter urls: --url_block_list is missing; name a file with a domain or address per line"
        )
    if config.url_block_list is not None:
        BlockList.read(config.url_block_list)
    Restored(config.restore)
    for name in names:
        if ":" in name:
            UserFunction(name).function  # noqa: B018 -- raises if it cannot be loaded
            UserFunction(name).files()
    known = [f"{name}.{bound}" for name in names for bound in THRESHOLDS.get(name, ())]
    for name, _ in config.thresholds:
        if name not in known:
            raise UsageError(
                f"--thresholds {name}: is not a threshold of --filter {','.join(names)}"
                f"{suggestion(name, known)}; they are {', '.join(known) or 'none'}"
            )


def files_identity(config: CurationConfig) -> dict[str, dict[str, str]]:
    """Returns an entry for the fingerprint with the SHA-256 of each file on which filters depend; {} if there is none.

    A function's files are that of its module, without the modules that it imports, and those that it names in `FILES`.
    """
    paths: dict[str, str] = {}
    for name in config.filter:
        if ":" in name:
            module, *others = map(str, UserFunction(name).files())
            paths[name] = module
            paths |= {f"{name} file {number}": path for number, path in enumerate(others)}
    if "language" in config.filter and config.language_model is not None:
        paths["language"] = config.language_model
    if "urls" in config.filter:
        paths["urls"] = config.url_block_list
    if config.attributes is not None:
        paths["attributes"] = filesystem.join(config.attributes, ATTRIBUTES_RECORD)
    paths |= {f"restore {number}": path for number, path in enumerate(config.restore)}
    sums = {name: _sha256(path) for name, path in sorted(paths.items())}
    return {"filter_files": sums} if sums else {}


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with filesystem.open_file(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def bounds_of(rule: Rule, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the limits and settings of a rule by name, where `thresholds` has them by `rule.name`."""
    return {name: thresholds.get(f"{rule.name}.{name}", default) for name, default in rule.defaults.items()}


def edits(name: str) -> bool:
    """Returns whether a filter may edit texts."""
    return name in ("c4", "pii") or ":" in name


def make_filters(config: CurationConfig, *, edits_only: bool = False) -> list[Decision]:
    """Returns the decisions of `--filter`, in its order; with `edits_only`, those that may edit texts."""
    splitter, thresholds = WordSplitter(), dict(config.thresholds)

    def decision_of(name: str) -> Decision:
        if name in RULES:
            return RuleDecision(RULES[name], bounds_of(RULES[name], thresholds), splitter)
        if name == "language":
            probability = thresholds.get("language.min_probability", MIN_PROBABILITY)
            return KeepLanguages(config.languages, LanguageModel(config.language_model), probability)
        if name == "pii":
            return MaskPersonalData()
        if name == "urls":
            return BlockUrls(config.url_block_list, config.url_column)
        return UserFunction(name)

    return [decision_of(name) for name in config.filter if edits(name) or not edits_only]
