"""Fixtures of the tests on an independent server."""

from tests.beam_pipeline.conftest import corpus, documents, tokenizer_folder

__all__ = ["corpus", "documents", "tokenizer_folder"]
