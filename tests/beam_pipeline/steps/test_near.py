"""`prepare --dedup near`, compared with all pairs of a small corpus in plain Python."""

from __future__ import annotations

import json
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.steps import near, near_duplicates
from beam_pipeline.steps import write as write_step
from beam_pipeline.steps.deduplicate import DUPLICATE
from beam_pipeline.steps.near_clusters import ROOTS, decide, near_removals, num_rounds, removed_of_unit
from beam_pipeline.steps.near_duplicates import EQUALS, REMOVED, ProposePairs
from beam_pipeline.steps.near_similarity import SIMILAR, SIMILARITY, CompareLocally
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.near_corpora import of_one_document, of_variants, planted, with_a_common_shingle
from tests.beam_pipeline.near_reference import clusters, shingles, similarity
from tests.beam_pipeline.runs import arguments, content, defects, fail_before_the_manifests

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


@pytest.mark.parametrize(
    ("make", "count", "removed"),
    [(of_one_document, 500, 499), (of_variants, 300, 299), (with_a_common_shingle, 300, 0)],
)
def test_degenerate_corpora_are_clustered(tokenizer_folder, tmp_path, monkeypatch, make, count, removed):
    """How little is compared then is a test of `curation.candidates`."""
    (tmp_path / "in.txt").write_text("\n".join(make(count)))
    monkeypatch.setattr(near, "ProposePairs", partial(ProposePairs, entries_per_pass=1000))
    options = ["--max_length", "64", "--unit_bytes", "10000", "--dedup", "near"]
    prepare.main(arguments(tmp_path / "in.txt", tokenizer_folder, tmp_path / "out", *options))
    rows = removed_rows(tmp_path / "out")
    assert len(rows) == removed
    assert {tuple(json.loads(row["evidence"])["kept"]) for row in rows} == ({(0, 0)} if removed else set())


def test_resumed_runs_keep_sketches_and_give_the_same_bytes(
    whole, source, tokenizer_folder, tmp_path, monkeypatch
):
    sketched: list[int] = []
    write = near_duplicates.write_sketches
    monkeypatch.setattr(
        near_duplicates, "write_sketches", lambda path, *args: [sketched.append(path), write(path, *args)][1]
    )
    run = [*arguments(source, tokenizer_folder, tmp_path / "out", *OPTIONS)]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="before the manifests"):
        patch.setattr(write_step, "commit", fail_before_the_manifests)
        prepare.main(run)
    paths = sorted(tmp_path.glob("out/_staging/**/*.sketches"))
    assert sorted(sketched) == list(map(str, paths)) and len(paths) > 5
    damaged, cut, *_ = paths
    data = bytearray(damaged.read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-20])
    sketched.clear()
    prepare.main([*run, "--resume"])
    assert sorted(sketched) == [str(damaged), str(cut)]
    assert content(tmp_path / "out") == content(whole)


def entries(dtype: np.dtype, *rows: dict) -> np.ndarray:
    return np.array([tuple(row[name] for name in dtype.names) for row in rows], dtype)


def test_the_document_that_is_kept_is_named_if_it_was_compared_else_the_most_similar_one():
    roots = np.array([[9, 2], [7, 2]], np.uint64)
    similar = entries(
        SIMILARITY,
        {"document": 7, "like": 5, "similarity": 0.95},
        {"document": 7, "like": 2, "similarity": 0.85},
        {"document": 9, "like": 7, "similarity": 0.9},
        {"document": 9, "like": 5, "similarity": 0.9},
        {"document": 2, "like": 7, "similarity": 0.85},
    )
    for order in (slice(None), slice(None, None, -1)):
        removed = removed_of_unit(roots[order].ravel(), similar[order])
        assert removed.tolist() == [(7, 2, 2, 0.85), (9, 2, 5, 0.9)]


def test_repeats_share_the_fate_of_the_document_that_they_repeat():
    first_id = (3 << 32) + 1
    removed = entries(
        REMOVED,
        {"document": 8, "kept": first_id, "like": first_id, "similarity": 1.0},
        {"document": 1, "kept": 5, "like": 6, "similarity": 0.9},
        {"document": 4, "kept": (3 << 32) + 2, "like": (3 << 32) + 2, "similarity": 0.8},
    )
    table = near_removals(3, removed).table.to_pylist()
    assert [(row["document"], row["value"], json.loads(row["evidence"])) for row in table] == [
        (1, 0.9, {"kept": [0, 5], "like": [0, 6]}),
        (4, 0.8, {"kept": [3, 2]}),
        (8, 1.0, {"kept": [0, 5], "like": [3, 1]}),
    ]


def test_equal_documents_of_other_units_are_like_one_that_may_be_removed_itself():
    equal = entries(
        DUPLICATE,
        {"document": 6, "kept_unit": 3, "kept_document": 7},
        {"document": 5, "kept_unit": 3, "kept_document": 8},
    )
    roots = np.array([[(3 << 32) + 7, 2]], np.uint64)
    similar = entries(SIMILARITY, {"document": 7, "like": 2, "similarity": 0.9})
    joined = {ROOTS: [roots.tobytes()], SIMILAR: [similar.tobytes()], EQUALS: [(4, equal.tobytes())]}
    decided = {unit: np.frombuffer(data, REMOVED).tolist() for unit, data in decide((3, joined))}
    first, second = (3 << 32) + 7, (3 << 32) + 8
    assert decided == {3: [(7, 2, 2, 0.9)], 4: [(6, 2, first, 1.0), (5, second, second, 1.0)]}


def test_rounds_grow_with_the_logarithm_of_the_input():
    assert [num_rounds(size) for size in (0, 10**9, 16 << 30, 32 << 30, 10**13)] == [0, 0, 0, 1, 10]


def test_in_cloud_storage_sets_are_sent_and_every_byte_is_as_on_a_local_disk(
    gcs, whole, source, tokenizer_folder
):
    gcs.put("gs://data/in/in.jsonl", source.read_bytes())
    out = "gs://data/near"
    prepare.main(arguments("gs://data/in/in.jsonl", tokenizer_folder, out, *OPTIONS))
    objects, local = gcs.objects_below(out), content(whole)
    shards = [name for name in local if name.endswith(".tfrecord")]
    assert shards and [objects[name] for name in shards] == [local[name] for name in shards]
    lists = [name for name in local if name.startswith("removed/")]
    assert lists == [name for name in lists if name in objects]
    for name in lists:
        tables = (pq.read_table(BytesIO(files[name])).drop(["path"]) for files in (objects, local))
        assert next(tables) == next(tables)


def test_restored_documents_stay(whole, source, texts, tokenizer_folder, tmp_path):
    out, restored = tmp_path / "out", tmp_path / "restored.parquet"
    pq.write_table(pq.read_table(whole / "removed"), restored)
    prepare.main(arguments(source, tokenizer_folder, out, *OPTIONS, "--restore", str(restored)))
    assert not removed_rows(out)
    assert json.loads((out / "train" / "manifest.json").read_text())["totals"]["documents"] == len(texts)
