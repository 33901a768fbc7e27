"""What the demo ends with: the figures and answers of its steps, from the files and the output that they left."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from demo.plan import SPLITS, Paths
from demo.steps import Done

_PREDICTION = re.compile(r"^ {4}(?P<probability>\d\.\d+)  (?P<token>'.*?'|\".*?\")  ")
_SPEED = re.compile(r"[\d.]+ MB/s")
_GUESSES = 3
_KEY = 13


def summary(paths: Paths, done: Mapping[str, Done], seconds: float) -> str:
    """The text of the summary.

    Args:
      paths: where the demo's files lie.
      done: what each step left, by the step's name.
      seconds: how long the whole demo took, this time.
    """
    groups = [
        [f"Done in {_duration(seconds)}."],
        _dataset(paths, done["prepare"]),
        _model(paths, done["fit"]),
        _answers(paths, done["fill-mask"].stdout),
        _files(paths),
    ]
    return "\n\n".join("\n".join(group) for group in groups)


def _line(key: str, text: str) -> str:
    return f"  {key:<{_KEY}}{text}"


def _dataset(paths: Paths, prepared: Done) -> list[str]:
    manifests = {split: _json(paths.dataset / split / "manifest.json") for split in SPLITS}
    totals = [manifest["totals"] for manifest in manifests.values()]
    size = sum(total["bytes"] for total in totals)
    tokens = sum(total["tokens"] for total in totals)
    lines = [
        "The dataset",
        _line("text", f"{sum(total['documents'] for total in totals):,} documents, {size / 1e6:,.1f} MB"),
        _line(
            "tokens",
            f"{tokens:,} of a vocabulary of {manifests['train']['tokenizer']['vocab_size']:,}, "
            f"{size / max(1, tokens):.2f} bytes each",
        ),
    ]
    for split, manifest in manifests.items():
        total = manifest["totals"]
        lines.append(
            _line(
                split,
                f"{total['documents']:>7,} documents {total['tokens']:>11,} tokens {total['rows']:>8,} rows of "
                f"{manifest['max_length']} {len(manifest['shards']):>4,} {_shards(len(manifest['shards']))}",
            )
        )
    speed = _SPEED.search(prepared.stdout)
    if speed:
        lines.append(_line("speed", f"{speed[0]}, after the start-up"))
    return lines


def _shards(count: int) -> str:
    return "shard" if count == 1 else "shards"


def _model(paths: Paths, trained: Done) -> list[str]:
    fitted = _json(paths.fitted)
    evaluated = _json(paths.evaluated)
    entropy, end = fitted["unigram_entropy"], evaluated["loss"]
    speed = fitted["tokens_per_second"]
    verdict = "below: the model has learnt more than frequencies"
    if end >= entropy:
        verdict = "not below: the model has learnt no more than frequencies; there is too little text, or too few steps"
    return [
        "The model",
        _line(
            "training",
            f"{fitted['parameters']:,} parameters, {fitted['steps']:,} steps in {_duration(trained.seconds)}"
            + (f", {speed:,} tokens/s" if speed else ""),
        ),
        _line("loss", f"{fitted['initial_loss']:.3f} at the start, {fitted['final_loss']:.3f} at the end"),
        _line(
            "held out", f"{end:.3f}, accuracy {evaluated['accuracy']:.1%}, over the whole validation split"
        ),
        _line("baseline", f"{entropy:.3f}, the unigram entropy of the data; the held-out loss is {verdict}"),
    ]


def predictions(output: str) -> Iterator[list[tuple[str, float]]]:
    """What `fill-mask` printed: for each text the tokens it predicts with their probabilities, the likeliest first."""
    found: list[tuple[str, float]] = []
    for line in output.split("\n"):
        match = _PREDICTION.match(line)
        if match:
            found.append((ast.literal_eval(match["token"]), float(match["probability"])))
        elif found:
            yield found
            found = []
    if found:
        yield found


def _answers(paths: Paths, output: str) -> list[str]:
    chosen = [json.loads(line) for line in paths.chosen.read_text(encoding="utf-8").splitlines()]
    if not chosen:
        return ["No sentence of the validation split has a word that can be masked."]
    lines = ["Held-out sentences, a word masked"]
    for item, guesses in zip(chosen, predictions(output), strict=True):
        best = ", ".join(f"{token.strip()!r} {probability:.0%}" for token, probability in guesses[:_GUESSES])
        lines.append(f"  {item['masked']}")
        lines.append(_line("", f"truth {item['truth']!r}; guesses {best}"))
    return lines


def _files(paths: Paths) -> list[str]:
    return [
        "The files",
        _line(
            "dataset",
            f"{_shown(paths.dataset)}: shards, manifests, the tokenizer, and report.html to look at",
        ),
        _line("run", f"{_shown(paths.run)}: config.yaml, metrics.jsonl, checkpoints"),
        _line("model", f"{_shown(paths.model)}: what AutoModelForMaskedLM.from_pretrained loads"),
    ]


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))
