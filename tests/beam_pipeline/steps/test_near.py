"""`prepare --dedup near`, compared with all pairs of a small corpus in plain Python."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.steps import near
from beam_pipeline.steps.near_similarity import CompareLocally
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.near_corpora import clusters, planted, shingles, similarity
from tests.beam_pipeline.runs import arguments, content, defects

OPTIONS = ["--max_length", "64", "--unit_bytes", "6000", "--dedup", "near"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return planted(40)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    path = tmp_path_factory.mktemp("source") / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, source: Path, tokenizer_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("whole")
    prepare.main(arguments(source, tokenizer_folder, out, *OPTIONS))
    return out


def removed_rows(out: Path) -> list[dict]:
    return [row for path in sorted(out.glob("removed/*.parquet")) for row in pq.read_table(path).to_pylist()]


def numbers_by_place(source: Path) -> dict[int, int]:
    lines = source.read_bytes().splitlines(keepends=True)
    return {sum(map(len, lines[:number])): number for number in range(len(lines))}


def test_removed_are_all_but_the_first_of_each_cluster_with_their_exact_similarity(whole, source, texts):
    numbers = numbers_by_place(source)
    expected = clusters(texts, 0.8, 5)
    rows = removed_rows(whole)
    assert len({row["path"] for row in rows}) == 1 and {row["rule"] for row in rows} == {"near"}
    assert sorted(numbers[row["place"]] for row in rows) == sorted(expected)
    first_of_unit: dict[int, int] = {}
    units = [json.loads(line) for line in (whole / "train" / "units.jsonl").read_text().splitlines()[:-1]]
    for unit in units:
        first_of_unit[unit["unit"]] = sum(place < unit["parts"][0][1] for place in numbers)
    assert len(units) > 5
    sets = [shingles(text, 5) for text in texts]
    for row in rows:
        evidence = json.loads(row["evidence"])
        number = numbers[row["place"]]
        (kept_unit, kept), (like_unit, like) = evidence["kept"], evidence.get("like", evidence["kept"])
        assert first_of_unit[kept_unit] + kept == expected[number]
        assert row["value"] == similarity(sets[number], sets[first_of_unit[like_unit] + like]) >= 0.8
    assert {row["value"] for row in rows} > {1.0}
    assert defects(whole) == []
    manifest = json.loads((whole / "train" / "manifest.json").read_text())
    assert manifest["removed"] == {"near": len(expected)}


@pytest.mark.parametrize(
    "options", [["--direct_num_workers", "2", "--direct_running_mode", "multi_threading"]]
)
def test_workers_and_the_way_of_sets_do_not_change_a_byte(
    whole, source, tokenizer_folder, tmp_path, monkeypatch, options
):
    monkeypatch.setattr(near, "num_partitions", lambda size: 3)
    monkeypatch.setattr(near, "num_rounds", lambda size: 2)
    monkeypatch.setattr(near, "num_band_buckets", lambda size: 5)

    def not_local(self, pairs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(near.filesystem, "is_local", lambda path: False)
            return compare(self, pairs)

    compare = near.RemoveNearDuplicates._compare
    monkeypatch.setattr(near.RemoveNearDuplicates, "_compare", not_local)
    monkeypatch.setattr(CompareLocally, "process", None)
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", *OPTIONS, *options))
    assert content(tmp_path / "out") == content(whole)


def test_similar_texts_of_characters_are_removed_without_spaces(tokenizer_folder, tmp_path):
    text = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗いじめじめした所で"
    other = "山路を登りながら、こう考えた。智に働けば角が立つ。情に棹させば流される。意地を通せば窮屈だ。"
    lines = [text, other, text.replace("。", "、 "), text[: int(0.95 * len(text))]]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    options = ["--max_length", "64", "--dedup", "near", "--near_shingle", "24c"]
    prepare.main(arguments(tmp_path / "in.txt", tokenizer_folder, tmp_path / "out", *options))
    rows = removed_rows(tmp_path / "out")
    assert [row["document"] for row in rows] == [2, 3]
    assert rows[0]["value"] == 1.0 > rows[1]["value"] > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dedup", "exact", "--near_threshold", "0.9"], "applies to --dedup near only"),
        (["--dedup", "near", "--near_shingle", "0"], "is not a number of words such as 5"),
        (["--dedup", "near", "--near_shingle", "1000"], "is not a number of words such as 5"),
        (["--dedup", "near", "--near_bands", "200x8"], "is not of the form 14x8"),
        (["--dedup", "near", "--near_bands", "14"], "is not of the form 14x8"),
    ],
)
def test_wrong_options_are_refused(source, tokenizer_folder, tmp_path, options, message):
    with pytest.raises((UsageError, SystemExit), match=message):
        prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", *options))
