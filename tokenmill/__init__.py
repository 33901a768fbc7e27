"""Makes and checks token datasets from Python, as the command `tokenmill` does.

    import tokenmill

    config = tokenmill.PrepareConfig(
        input=tokenmill.InputConfig(input=("corpus/*.jsonl",)), tokenizer="tokenizer", output="dataset"
    )
    dataset = tokenmill.prepare(config)
    dataset.open("train")[0]["input_ids"]

The classes of options have the fields that `tokenmill VERB --help` lists as options. `tokenmill.beam` has transforms
for pipelines of your own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_pipeline.options.curation_options import CurationConfig
    from beam_pipeline.options.input_options import DatasetConfig, InputConfig, MixItem
    from beam_pipeline.options.verbs import AnnotateConfig, PrepareConfig, TrainTokenizerConfig
    from beam_pipeline.support.errors import DataError, UsageError
    from beam_pipeline.verbs.results import (
        AnnotatedCorpus,
        Estimate,
        PreparedDataset,
        TrainedTokenizer,
        Verification,
    )
    from tokenmill.api import annotate, estimate, prepare, train_tokenizer, verify

__all__ = [
    "AnnotateConfig",
    "AnnotatedCorpus",
    "CurationConfig",
    "DataError",
    "DatasetConfig",
    "Estimate",
    "InputConfig",
    "MixItem",
    "PrepareConfig",
    "PreparedDataset",
    "TrainTokenizerConfig",
    "TrainedTokenizer",
    "UsageError",
    "Verification",
    "annotate",
    "estimate",
    "prepare",
    "train_tokenizer",
    "verify",
]

_MODULES = {
    "beam_pipeline.options.curation_options": ("CurationConfig",),
    "beam_pipeline.options.input_options": ("DatasetConfig", "InputConfig", "MixItem"),
    "beam_pipeline.options.verbs": ("AnnotateConfig", "PrepareConfig", "TrainTokenizerConfig"),
    "beam_pipeline.support.errors": ("DataError", "UsageError"),
    "beam_pipeline.verbs.results": (
        "AnnotatedCorpus",
        "Estimate",
        "PreparedDataset",
        "TrainedTokenizer",
        "Verification",
    ),
    "tokenmill.api": ("annotate", "estimate", "prepare", "train_tokenizer", "verify"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name when it is used, since Beam takes seconds to import."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
