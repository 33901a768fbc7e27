from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from beam_pipeline.options.input_options import parse_mix
from beam_pipeline.support.errors import UsageError

DOCUMENTS = 4000


@pytest.fixture
def folder(write) -> Path:
    for name in ("a", "b"):
        path = write(f"{name}.txt", "".join(f"{name} {number}\n\n" for number in range(DOCUMENTS)))
    write("bad.txt", b"fine\n\xff\n" * DOCUMENTS)
    return Path(path).parent


def test_whole_repeats_and_a_share(folder: Path, read) -> None:
    result = read(mix=parse_mix(f"{folder}/a.txt*2.5,{folder}/b.txt*0.25"), unit_bytes=10_000)
    times = Counter(result.texts)
    first = [times[f"a {number}"] for number in range(DOCUMENTS)]
    second = [times[f"b {number}"] for number in range(DOCUMENTS)]
    assert set(first) == {2, 3}
    assert set(second) == {0, 1}
    # Five standard deviations of the binomial distribution.
    assert abs(sum(first) - 2.5 * DOCUMENTS) < 5 * (DOCUMENTS / 4) ** 0.5
    assert abs(sum(second) - DOCUMENTS / 4) < 5 * (DOCUMENTS * 3 / 16) ** 0.5
    assert sum(times.values()) == sum(first) + sum(second)
    # The share applies to blank lines, too.
    assert (
        abs(result.blank - 2.75 * DOCUMENTS) < 10 * (DOCUMENTS / 4) ** 0.5 or result.blank == 2.75 * DOCUMENTS
    )


def test_a_repeated_document_has_one_place(folder: Path, read) -> None:
    result = read(mix=parse_mix(f"{folder}/a.txt*3.5"))
    places = {}
    for name, place, text in result.documents:
        assert places.setdefault(text, (name, place)) == (name, place)


def test_the_share_is_the_same_however_the_input_is_cut(folder: Path, read) -> None:
    mix = parse_mix(f"{folder}/a.txt*0.5")
    assert read(mix=mix).texts == read(mix=mix, unit_bytes=777).texts


def test_the_seed_decides_the_share(folder: Path, read) -> None:
    mix = parse_mix(f"{folder}/a.txt*0.5")
    assert read(mix=mix, seed=1).texts == read(mix=mix, seed=1).texts != read(mix=mix, seed=2).texts


def test_a_larger_share_holds_a_smaller_one(folder: Path, read) -> None:
    small_share, large_share = (
        set(read(mix=parse_mix(f"{folder}/a.txt*{share}")).texts) for share in ("0.2", "0.6")
    )
    assert small_share < large_share


def test_of_bad_records_the_share_is_reported(folder: Path, read) -> None:
    result = read(mix=parse_mix(f"{folder}/bad.txt*0.5"))
    assert abs(len(result.bad) - DOCUMENTS / 2) < 5 * (DOCUMENTS / 4) ** 0.5
    assert abs(len(result.texts) - DOCUMENTS / 2) < 5 * (DOCUMENTS / 4) ** 0.5


def test_the_order_of_items_is_irrelevant(folder: Path, read) -> None:
    items = [f"{folder}/a.txt*0.5", f"{folder}/b.**2"]
    forward, backward = (read(mix=parse_mix(",".join(order))) for order in (items, items[::-1]))
    assert forward.plan == backward.plan
    assert forward.documents == backward.documents


def test_globs(folder: Path, read) -> None:
    result = read(mix=parse_mix(f"{folder}/[ab].**2"))
    assert Counter(result.texts).most_common(1)[0][1] == 2
    assert len(result.texts) == 4 * DOCUMENTS


def test_a_file_of_two_items_is_an_error(folder: Path, read) -> None:
    with pytest.raises(UsageError, match=r"--mix: .*a\.txt is matched by two items, .*a\.txt and .*\*\.txt"):
        read(mix=parse_mix(f"{folder}/a.txt*1,{folder}/*.txt*2"))


def test_an_item_without_files_is_an_error(folder: Path, read) -> None:
    with pytest.raises(UsageError, match=r"--mix .*none\.txt: no file matches"):
        read(mix=parse_mix(f"{folder}/a.txt*1,{folder}/none.txt*2"))
