"""Characters are mapped as the component does it, whichever thread meets them first."""

from __future__ import annotations

import random
import threading

import pytest
from tokenizers.normalizers import BertNormalizer, Normalizer

from beam_pipeline.tokenization import character_map
from beam_pipeline.tokenization.character_map import CharacterMap
from benchmarks.hostile_text import hostile_text


class _Slow:
    """Upper case, as a component that lets another thread begin while it maps `ä`."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def normalize_str(self, text: str) -> str:
        if text == "ä":
            self.has_begun.set()
            self.may_end.wait(0.2)
        return text.upper()


def test_threads_that_learn_characters_at_the_same_time_do_not_mix_them_up() -> None:
    component = _Slow()
    characters = CharacterMap(component)
    slow = threading.Thread(target=characters, args=(["ä"],))
    slow.start()
    component.has_begun.wait()
    assert list(characters(["öß"])) == ["ÖSS"]
    component.may_end.set()
    slow.join()
    assert list(characters(["äößö"])) == ["ÄÖSSÖ"]


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize(
    "exact",
    [
        BertNormalizer(lowercase=True),
        BertNormalizer(lowercase=False),
        BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False),
    ],
)
def test_texts_are_normalized_as_by_the_component(
    exact: Normalizer, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_library:
        monkeypatch.setattr(character_map, "rows_library", lambda: None)
    rng = random.Random(0)
    every = "".join(chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000)
    texts = ["", "a\x00b", *(hostile_text(rng, 20) for _ in range(500))]
    texts += [every[start : start + 50] for start in range(0, len(every), 50)] if has_library else []
    assert list(CharacterMap(exact)(texts)) == list(map(exact.normalize_str, texts))


def test_the_first_character_may_depend_on_others() -> None:
    exact = BertNormalizer(strip_accents=False)
    assert list(CharacterMap(exact)(["\u0301", "a\u0301\u0316", "a"])) == list(
        map(exact.normalize_str, ["\u0301", "a\u0301\u0316", "a"])
    )
