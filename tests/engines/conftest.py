"""Fixtures of the tests on engines and servers that are not ours."""

from tests.beam_pipeline.conftest import corpus, documents, tokenizer_folder

__all__ = ["corpus", "documents", "tokenizer_folder"]
