import json
from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.steps.deduplicate import bucket_entries, find_duplicates, first_occurrences, removals_of
from beam_pipeline.support.hashing import text_hashes

texts = st.text("ab", max_size=2)


def duplicates(
    units: list[list[str]], buckets: int, entries_per_pass: int, shuffle=lambda items: None
) -> set[tuple[int, int]]:
    """Returns (unit, document) of all documents that the steps drop."""
    places, entries_by_bucket, kept_places = [], {}, set()
    for unit, documents in enumerate(units):
        hashes = text_hashes(documents)
        numbers = np.arange(len(hashes)) * 10
        firsts = first_occurrences(hashes)
        is_first = firsts == np.arange(len(firsts))
        places += [(unit, document) for document in np.flatnonzero(~is_first).tolist()]
        for bucket, entries in bucket_entries(hashes[is_first], numbers[is_first], buckets):
            entries_by_bucket.setdefault(bucket, []).append((unit, entries))
    for entry_list in entries_by_bucket.values():
        shuffle(entry_list)
        for unit, data in find_duplicates(entry_list, entries_per_pass):
            for row in removals_of([data]).table.to_pylist():
                places.append((unit, row["document"] // 10))
                kept_unit, kept = json.loads(row["evidence"])["kept"]
                kept_places.add((units[kept_unit][kept // 10], kept_unit, kept // 10))
    assert len(places) == len(set(places))
    for text, unit, document in kept_places:
        earlier = [place for place, documents in enumerate(units) if text in documents]
        assert (unit, document) == (earlier[0], units[earlier[0]].index(text))
    return set(places)


@given(
    st.lists(st.lists(texts, max_size=12), max_size=8), st.integers(1, 4), st.integers(1, 20), st.randoms()
)
def test_all_but_the_first_of_equal_documents_are_found(units, buckets, entries_per_pass, order):
    known_texts, expected = set(), set()
    for unit, documents in enumerate(units):
        for number, text in enumerate(documents):
            if text in known_texts:
                expected.add((unit, number))
            known_texts.add(text)
    assert duplicates(units, buckets, entries_per_pass, order.shuffle) == expected


def test_a_text_that_is_everywhere_sends_one_entry_a_unit():
    hashes = np.frombuffer(blake2b(b"hot", digest_size=16).digest() * 100_000, np.uint64).reshape(-1, 2)
    is_first = first_occurrences(hashes) == np.arange(len(hashes))
    ((_, entries),) = bucket_entries(hashes[is_first], np.flatnonzero(is_first), buckets=4096)
    assert len(entries) == 20
    # In 30,000 units of 100,000 copies each, that is 600 kB in one group, and each later unit leaves its first out.
    duplicate_places = list(find_duplicates([(unit, entries) for unit in range(30_000)]))
    assert [unit for unit, _ in duplicate_places] == list(range(1, 30_000))
    assert {len(data) for _, data in duplicate_places} == {16}
    assert removals_of([duplicate_places[0][1]]).table.to_pylist() == [
        {"document": 0, "rule": "exact", "value": 1.0, "evidence": '{"kept":[0,0]}'}
    ]
