import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation import shingles
from beam_pipeline.curation.normalize import normalize_texts
from beam_pipeline.curation.shingles import ShingleSize, shingle_sets

characters = st.sampled_from("ab .\né日本ß½")
sizes = st.builds(ShingleSize, st.integers(1, 6), st.booleans())


def sets_of(texts: list[str], size: ShingleSize) -> list[set[int]]:
    sets = shingle_sets(texts, size)
    return [set(part.tolist()) for part in np.split(sets.hashes, sets.starts[1:-1])]


def plain_shingles(text: str, size: ShingleSize) -> set[tuple[str, ...]]:
    words = normalize_texts([text]).decode().split()
    items = [character for word in words for character in word] if size.characters else words
    count = max(1, len(items) - size.size + 1)
    return {tuple(items[start : start + size.size]) for start in range(count)}


@given(st.lists(st.text(characters, max_size=20), min_size=1, max_size=6), sizes)
def test_sets_have_a_hash_for_each_distinct_shingle(texts, size):
    plain = [plain_shingles(text, size) for text in texts]
    hashed = sets_of(texts, size)
    for text, shingles_of_text, hashes in zip(texts, plain, hashed, strict=True):
        assert len(hashes) == len(shingles_of_text)
        for other, shingles_of_other, other_hashes in zip(texts, plain, hashed, strict=True):
            if shingles_of_text != {()} != shingles_of_other:
                assert len(hashes & other_hashes) == len(shingles_of_text & shingles_of_other)
            else:  # texts without words are equal if they are so as they are
                assert (hashes == other_hashes) == (text.strip() == other.strip())


@given(st.lists(st.text(characters, max_size=20), max_size=6), sizes)
def test_the_compiled_function_gives_what_numpy_gives(texts, size):
    data = normalize_texts(texts)
    compiled, plain = (f(data, len(texts), size) for f in (shingles._compiled_shingles, shingles._shingles))
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.lists(st.text(characters, max_size=20), min_size=1, max_size=6), sizes)
def test_keys_are_equal_for_equal_sets_only(texts, size):
    keys = [tuple(key) for key in shingle_sets(texts, size).keys().tolist()]
    sets = sets_of(texts, size)
    for one, key in zip(sets, keys, strict=True):
        assert [key == other for other in keys] == [one == other for other in sets]


def test_sets_are_ascending_and_do_not_depend_on_the_other_texts():
    texts = ["the cat and the dog and the cat and the dog again", "…", "Zwölf Boxkämpfer"]
    together = shingle_sets(texts, ShingleSize(3))
    for index, text in enumerate(texts):
        alone = shingle_sets([text], ShingleSize(3))
        part = together.hashes[together.starts[index] : together.starts[index + 1]]
        np.testing.assert_array_equal(alone.hashes, part)
        assert (np.diff(part.astype(object)) > 0).all()
    assert shingle_sets([], ShingleSize(5)).starts.tolist() == [0]
    assert shingle_sets([], ShingleSize(5)).keys().shape == (0, 2)


@pytest.mark.parametrize(("text", "size"), [("5", ShingleSize(5)), ("24c", ShingleSize(24, characters=True))])
def test_sizes_are_numbers_of_words_or_characters(text, size):
    assert ShingleSize.from_option(text) == size
