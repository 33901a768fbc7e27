"""Added tokens are found in text exactly where `tokenizers` finds them."""

from __future__ import annotations

from hypothesis import given, settings, strategies
from tokenizers import AddedToken, Tokenizer, models

from beam_pipeline.engines.literals import Literals, StringSet, cut_at

OPTIONS = ("lstrip", "rstrip", "single_word", "special")
CONTENTS = strategies.text(alphabet="ab< \n", min_size=1, max_size=4)
TOKENS = strategies.dictionaries(
    CONTENTS, strategies.fixed_dictionaries(dict.fromkeys(OPTIONS, strategies.booleans())), max_size=6
)
TEXTS = strategies.lists(strategies.text(alphabet="ab< \n\u3000é", max_size=20), max_size=5)


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
    actual, undecided = literals.find(texts)
    split = literals.split(texts)
    if split is not None:
        cut = cut_at(texts, actual)
        assert not undecided and split.texts == cut.texts
        for name in ("owners", "indices", "tokens", "counts"):
            assert getattr(split, name).tolist() == getattr(cut, name).tolist(), name
    for index, text in enumerate(texts):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        expected = [
            (*place, number) for number, place in zip(encoding.ids, encoding.offsets, strict=True) if number
        ]
        if index in undecided:
            assert expected or any(token["single_word"] for token in added_tokens)
        else:
            assert actual.get(index, []) == expected


def test_the_longest_string_at_each_place_is_found():
    strings = StringSet(["a", "ab", "abcd", "bc", "\n", "\n\n"])
    assert list(strings.find(["abc", "", "xabcd\n\n\n"])) == [
        (0, 0, "ab"),
        (2, 1, "abcd"),
        (2, 5, "\n\n"),
        (2, 7, "\n"),
    ]
    assert not StringSet([]) and not list(StringSet([]).find(["a"]))


def test_thousands_of_tokens_take_no_longer_than_a_few():
    strings = StringSet([f"<unused{number}>" for number in range(6000)])
    assert [string for *_, string in strings.find(["<" * 100_000 + "<unused17>", "<unused5999>"])] == [
        "<unused17>",
        "<unused5999>",
    ]


def test_texts_are_split_at_tokens():
    tokens = [
        {"id": number, "content": content, **dict.fromkeys(OPTIONS, False)}
        for number, content in enumerate(["\n", "\n\n", "<b>"], 7)
    ]
    sections = Literals(tokens).split(["", "\n\n\nab<b>", "", "c"])
    assert sections.texts == ["ab", "c"] and sections.owners.tolist() == [1, 3]
    assert sections.tokens.tolist() == [8, 7, 9] and sections.indices.tolist() == [2, 4, 0, 1, 3]
    assert sections.counts.tolist() == [0, 4, 0, 1]
    assert Literals(tokens).split(["a", "b"]) is None
    assert Literals(tokens).split(["a\0", "b\n"]) is None
    # Tokens that are plain text stay in their sections.
    sections = Literals(tokens, ignored=["<b>"]).split(["a<b><b>c\n<b>", "<b>", "b\n"])
    assert sections.texts == ["a<b><b>c", "<b>", "<b>", "b"] and sections.owners.tolist() == [0, 0, 1, 2]
    assert sections.tokens.tolist() == [7, 7] and sections.counts.tolist() == [3, 1, 2]
