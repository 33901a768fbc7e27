"""Added tokens are found in text exactly where `tokenizers` finds them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from tokenizers import AddedToken, Tokenizer, models

from beam_pipeline.engines.literals import Literals, StringSet
from beam_pipeline.native.library import rows_library
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.normalization import ONLY_PYTHON_SPACE, RUST_SPACE

compiled = pytest.mark.skipif(rows_library() is None, reason="there is no C compiler")

OPTIONS = ("lstrip", "rstrip", "single_word", "special")
CONTENTS = strategies.text(alphabet="ab< \n", min_size=1, max_size=4)
TOKENS = strategies.dictionaries(
    CONTENTS, strategies.fixed_dictionaries(dict.fromkeys(OPTIONS, strategies.booleans())), max_size=6
)
TEXTS = strategies.lists(strategies.text(alphabet="ab< \n\u3000é", max_size=20), max_size=5)


def plain_tokens(contents: list[str], **options: bool) -> list[dict]:
    return [
        {"id": number, "content": content, **dict.fromkeys(OPTIONS, False), **options}
        for number, content in enumerate(contents, 7)
    ]


def places(literals: Literals, texts: list[str]) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Returns index of the text, start and end in characters, and id of each token; and the unclear texts."""
    encoded = Texts.of(texts)
    spans = literals.find(encoded)
    arrays = (spans.owners, spans.starts, spans.ends, spans.ids)
    return [
        (
            index,
            *(len(str(encoded.data[encoded.starts[index] : place], "utf-8")) for place in (start, end)),
            number,
        )
        for index, start, end, number in zip(*(array.tolist() for array in arrays), strict=True)
    ], spans.unclear.tolist()


@compiled
@settings(deadline=None)
@given(tokens=TOKENS, texts=TEXTS, parse=strategies.booleans())
def test_places(tokens: dict[str, dict[str, bool]], texts: list[str], parse: bool):
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    for content, options in tokens.items():
        token = AddedToken(content, normalized=False, **options)
        tokenizer.add_special_tokens([token]) if options["special"] else tokenizer.add_tokens([token])
    tokenizer.encode_special_tokens = not parse
    added_tokens = [
        {"id": tokenizer.token_to_id(content), "content": content, **options}
        for content, options in tokens.items()
    ]
    ignored_tokens = [token["content"] for token in added_tokens if token["special"] and not parse]
    literals = Literals(added_tokens, ignored_tokens)
    actual, unclear = places(literals, texts)
    for index, text in enumerate(texts):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        expected = [
            (index, *place, number)
            for number, place in zip(encoding.ids, encoding.offsets, strict=True)
            if number
        ]
        if index in unclear:
            assert expected or any(token["single_word"] for token in added_tokens)
        else:
            assert [place for place in actual if place[0] == index] == expected


@compiled
def test_white_space_around_a_token_is_that_of_rust():
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("<m>", normalized=False, lstrip=True, rstrip=True)])
    spaces = [*RUST_SPACE, *ONLY_PYTHON_SPACE, "\u180e", "\u200b", "\u2060", "\ufeff", "\u2fff", "é"]
    texts = [
        f"{before}{space}<m>{space}{after}"
        for space in spaces
        for before, after in ((" ", "\u3000"), ("", ""), ("é", "é"))
    ]
    literals = Literals(plain_tokens(["<m>"], lstrip=True, rstrip=True))
    actual, unclear = places(literals, texts)
    encodings = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert not unclear and [place[1:3] for place in actual] == [
        place
        for encoding in encodings
        for number, place in zip(encoding.ids, encoding.offsets, strict=True)
        if number
    ]


ALPHABETS = ("ab", "a\n ", "é日a\U0001f600", "".join(map(chr, range(0x61, 0x71))))


@compiled
@settings(deadline=None, max_examples=300)
@given(data=strategies.data(), alphabet=strategies.sampled_from(ALPHABETS))
def test_the_compiled_search_finds_what_patterns_find(data, alphabet):
    strings = data.draw(
        strategies.lists(strategies.text(alphabet, min_size=1, max_size=5), unique=True, max_size=30)
    )
    texts = data.draw(strategies.lists(strategies.text(alphabet + "<", max_size=60), max_size=5))
    literals = Literals(plain_tokens(strings))
    expected = [
        (index, start, start + len(string), 7 + strings.index(string))
        for index, start, string in StringSet(strings).find(texts)
    ]
    assert places(literals, texts) == (expected, [])
    if len(texts) > 2:  # texts that are in another order in memory, and that overlap
        order = [2, 0, 2]
        spans = literals.find(Texts.of(texts).take(order))
        by_text = {index: [place[1:] for place in expected if place[0] == index] for index in order}
        assert spans.ids.tolist() == [place[2] for index in order for place in by_text[index]]


def test_the_longest_string_at_each_place_is_found():
    strings, texts = ["a", "ab", "abcd", "bc", "\n", "\n\n"], ["abc", "", "xabcd\n\n\n"]
    expected = [(0, 0, "ab"), (2, 1, "abcd"), (2, 5, "\n\n"), (2, 7, "\n")]
    assert list(StringSet(strings).find(texts)) == expected
    assert not list(StringSet([]).find(["a"]))


@compiled
def test_a_string_does_not_reach_into_the_next_text():
    literals = Literals(plain_tokens(["<s>", "<", "ab"]))
    assert places(literals, ["x<s", ">a", "b", "", "<s>"])[0] == [(0, 1, 2, 8), (4, 0, 3, 7)]


@compiled
def test_thousands_of_tokens_take_no_longer_than_a_few():
    contents = [f"<unused{number}>" for number in range(6000)]
    texts = ["<" * 100_000 + "<unused17>", "<unused5999>"]
    assert [string for *_, string in StringSet(contents).find(texts)] == ["<unused17>", "<unused5999>"]
    assert Literals(plain_tokens(contents)).find(Texts.of(texts)).ids.tolist() == [24, 6006]
    # More tokens than there is room for at first; tokens of hundreds of characters, each a prefix of others.
    runs = Literals(plain_tokens(["x" * size for size in range(1, 2000)]))
    assert (
        runs.find(Texts.of(["x" * 100_000, ("x" + "y") * 100_000])).ids.tolist()
        == [2005] * 50 + [56] + [7] * 100_000
    )


@compiled
def test_threads_search_at_the_same_time():
    literals = Literals(plain_tokens(["\n", "<b>", "of the"]))
    texts = Texts.of(["rows of the\n table<b>\n\n" * 500] * 20)
    expected = literals.find(texts)
    with ThreadPoolExecutor(8) as pool:
        for spans in pool.map(literals.find, [texts] * 40):
            assert np.array_equal(spans.starts, expected.starts) and np.array_equal(spans.ids, expected.ids)


@compiled
def test_texts_are_cut_at_tokens():
    contents = ["\n", "\n\n", "<b>"]
    spans = Literals(plain_tokens(contents)).find(Texts.of(["", "\n\n\nab<b>", "", "c"]))
    assert list(spans.sections) == ["", "", "", "ab", "", "", "c"] and spans.before.tolist() == [1, 2, 3]
    assert spans.ids.tolist() == [8, 7, 9] and spans.counts.tolist() == [1, 4, 1, 1]
    assert not len(Literals(plain_tokens(contents)).find(Texts.of(["a", "b"])).owners)
    # Tokens that are plain text stay in their sections.
    texts = Texts.of(["a<b><b>c\n<b>", "<b>", "b\n"])
    spans = Literals(plain_tokens(contents), ignored=["<b>"]).find(texts)
    assert list(spans.sections) == ["a<b><b>c", "<b>", "<b>", "b", ""]
    assert spans.ids.tolist() == [7, 7] and spans.counts.tolist() == [2, 1, 2]
