"""The peer: datatrove's filters of Gopher, C4, FineWeb and languages. Each decides about every document."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.readers import JsonlReader

FILTERS = {
    "gopher": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "fineweb": FineWebQualityFilter,
    "c4": C4QualityFilter,
}


class Decide(PipelineStep):
    """Writes a JSON line for each document: its number, and by filter the reason for which it is removed, or null."""

    name = "decide"

    def __init__(self, names: list[str], output: str, language_model: str | None):
        super().__init__()
        self._names, self._output, self._language_model = names, output, language_model

    def run(self, data, rank: int = 0, world_size: int = 1):
        filters = {
            name: FILTERS[name]() if name in FILTERS else self._language_filter() for name in self._names
        }
        with Path(self._output, f"{rank:02d}.jsonl").open("w", encoding="utf-8") as file:
            for number, document in enumerate(data):
                reasons = {}
                for name, rule in filters.items():  # C4's edits the text of the document that it gets
                    copy = Document(text=document.text, id=document.id)
                    result = rule.filter(copy)
                    if name == "language":
                        reasons[name] = [
                            copy.metadata["language"],
                            copy.metadata["language_score"],
                            bool(result),
                        ]
                    else:
                        reasons[name] = None if result is True else result[1]
                file.write(json.dumps([number, reasons]) + "\n")
                yield document

    def _language_filter(self) -> LanguageFilter:
        """Returns a filter that keeps English, by a local model instead of the one that datatrove downloads."""
        from fasttext.FastText import _FastText

        language_filter = LanguageFilter(["en"])
        language_filter.model._model = _FastText(self._language_model)
        return language_filter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="folder of jsonl files")
    parser.add_argument("--output", required=True)
    parser.add_argument("--filters", default=",".join(FILTERS))
    parser.add_argument("--language_model", help="fastText model of the filter language")
    args = parser.parse_args()
    Path(args.output).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs:
        LocalPipelineExecutor(
            pipeline=[
                JsonlReader(args.input),
                Decide(args.filters.split(","), args.output, args.language_model),
            ],
            tasks=1,
            workers=1,
            logging_dir=logs,
        ).run()


if __name__ == "__main__":
    main()
