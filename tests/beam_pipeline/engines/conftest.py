"""The fixtures with tokenizers and texts."""

from tests.beam_pipeline.tokenizers import (  # noqa: F401
    hard_texts,
    hostile_texts,
    make_tokenizer,
    save,
    text_strategy,
    tokenizer_json,
)
