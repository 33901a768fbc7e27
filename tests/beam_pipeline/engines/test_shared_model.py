"""A compiled model that several engines and threads share."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_pipeline.engines import engine
from beam_pipeline.native.words import WordModel

TEXTS = ["tea and coffee " * 10_000] * 4


def test_threads_that_begin_together_make_one_model(
    make_tokenizer: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json, made = make_tokenizer("unigram"), []
    engine._native.cache_clear()
    make_model = engine.NativeEngine

    def make_slowly(*arguments, **options):
        made.append(threading.get_ident())
        time.sleep(0.1)
        return make_model(*arguments, **options)

    monkeypatch.setattr(engine, "NativeEngine", make_slowly)
    with ThreadPoolExecutor(3) as pool:
        engines = list(pool.map(lambda _: engine.make_engine("native", tokenizer_json), range(3)))
    assert len(made) == 1 and len(set(map(id, engines))) == 3


def test_no_thread_goes_on_encoding_after_another_has_failed(
    make_tokenizer: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call uses the same states."""
    made = engine.make_engine("native", make_tokenizer("unigram"), threads=2)
    expected = [values.tolist() for values in made.encode_batch(TEXTS)]
    encode, ended = WordModel._encode, []

    def fail_or_wait(self, texts, lengths, state, span):
        if span.start == 0:
            raise MemoryError
        time.sleep(0.2)
        ended.append(encode(self, texts, lengths, state, span))

    monkeypatch.setattr(WordModel, "_encode", fail_or_wait)
    with pytest.raises(MemoryError):
        made.encode_batch(TEXTS)
    assert len(ended) == 1
    monkeypatch.undo()
    assert [values.tolist() for values in made.encode_batch(TEXTS)] == expected
