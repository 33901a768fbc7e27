"""Fixtures of the tests on a server that is not ours."""

from tests.beam_pipeline.conftest import corpus, documents, tokenizer_folder

__all__ = ["corpus", "documents", "tokenizer_folder"]
