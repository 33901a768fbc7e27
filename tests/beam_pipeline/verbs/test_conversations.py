"""Datasets of conversations, from files to shards: as users make, check, convert and inspect them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import convert, prepare
from beam_pipeline.verbs.inspection import main as inspect
from tests.beam_pipeline.conversations.families import CHATML, HARMONY, save_tokenizer
from tests.beam_pipeline.runs import arguments, content, defects, without_manifests
from tokenmill_reader import Dataset
from tokenmill_reader.format.manifest import with_checksum

FORMATS = ("parquet", "mds", "arrayrecord")


def write(path: Path, conversations: list[list[dict[str, str]]]) -> Path:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    return path


def turns(number: int, words: int = 3) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"{number} the cat" + " <|im_end|>" * (number % 7 == 0)},
        {"role": "assistant", "content": " ".join(["sat"] * (1 + number % words))},
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), CHATML)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("corpus") / "chats.jsonl", [turns(number) for number in range(200)])


def run(source: Path, tokenizer: Path, output: Path, *options: str) -> Path:
    conversations = ("--content", "conversation", "--max_length", "64", *options)
    prepare.main(arguments(source, tokenizer, output, *conversations))
    return output


@pytest.fixture(scope="module")
def chats(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(
        corpus, tokenizer, tmp_path_factory.mktemp("out") / "chats", "--splits", "train=0.8,validation=0.2"
    )


def conversations_of(split: Path) -> list[tuple[list[int], list[int]]]:
    """Returns (ids, loss_mask) of each conversation in the rows of a split, sorted."""
    found = []
    dataset = Dataset.open(split)
    for number in range(len(dataset)):
        row = dataset[number]
        for segment in range(1, int(row["segment_ids"].max()) + 1):
            inside = row["segment_ids"] == segment
            assert row["position_ids"][inside].tolist() == list(range(inside.sum()))
            found.append((row["input_ids"][inside].tolist(), row["loss_mask"][inside].tolist()))
        assert not row["loss_mask"][row["segment_ids"] == 0].any()
    return sorted(found)


def test_no_conversation_is_lost_divided_or_changed(chats: Path, tokenizer: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer)
    found = [part for split in ("train", "validation") for part in conversations_of(chats / split)]
    expected = []
    for number in range(200):
        text = reference.apply_chat_template(turns(number), tokenize=False)
        expected.append((text, turns(number)[1]["content"] + "<|im_end|>"))
    decoded = [
        (
            reference.decode(ids),
            reference.decode([number for number, chosen in zip(ids, mask, strict=True) if chosen]),
        )
        for ids, mask in found
    ]
    assert sorted(decoded) == sorted(expected)
    assert defects(chats) == []


def test_the_manifest_counts_targets(chats: Path) -> None:
    manifest = json.loads((chats / "train" / "manifest.json").read_text())
    dataset = Dataset.open(chats / "train")
    total = sum(int(dataset[number]["loss_mask"].sum()) for number in range(len(dataset)))
    assert manifest["totals"]["targets"] == total > 0
    assert "loss_mask" in manifest["features"]


@pytest.mark.parametrize("output_format", FORMATS)
def test_other_formats_have_the_same_rows_and_convert_back(
    output_format: str, chats: Path, corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    options = ("--splits", "train=0.8,validation=0.2", "--output_format", output_format)
    direct = run(corpus, tokenizer, tmp_path / "direct", *options)
    convert.main([str(chats), "--output_format", output_format, "--output", str(tmp_path / "converted")])
    assert without_manifests(direct) == without_manifests(tmp_path / "converted")
    assert defects(direct) == []
    convert.main([str(direct), "--output_format", "tfrecord", "--output", str(tmp_path / "back")])
    assert without_manifests(tmp_path / "back") == without_manifests(chats)


def test_a_changed_target_is_found(chats: Path, tmp_path: Path) -> None:
    from shutil import copytree

    import tensorflow as tf

    copy = Path(copytree(chats, tmp_path / "copy"))
    [shard] = (copy / "train").glob("*.tfrecord")
    records = [tf.train.Example.FromString(bytes(r.numpy())) for r in tf.data.TFRecordDataset(str(shard))]
    values = records[0].features.feature["loss_mask"].int64_list.value
    values[0] = 1 - values[0]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for record in records:
            writer.write(record.SerializeToString(deterministic=True))
    assert any("the rows' checksum is" in defect for defect in defects(copy))


def test_units_of_any_size_give_the_same_conversations(
    chats: Path, corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    options = ("--splits", "train=0.8,validation=0.2", "--unit_bytes", "1000")
    small = run(corpus, tokenizer, tmp_path / "small", *options)
    for split in ("train", "validation"):
        assert conversations_of(small / split) == conversations_of(chats / split)
    again = run(corpus, tokenizer, tmp_path / "again", *options)
    ours, theirs = content(small), content(again)
    assert {name: data for name, data in ours.items() if name.endswith(".tfrecord")} == {
        name: data for name, data in theirs.items() if name.endswith(".tfrecord")
    }


def test_inspect_marks_the_targets_of_a_conversation(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect([str(chats), "--record", "train:0:0", "--tokens"])
    lines = capsys.readouterr().out.splitlines()
    marked = [line.split()[2] for line in lines if line[6:7] == "*"]
    assert "<|im_end|>" in marked and "<|im_start|>" not in marked
    assert any("chats.jsonl, line" in line for line in lines)
    inspect([str(chats), "--record", "train:0:0", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert sum(stretch["targets"] for stretch in document["stretches"]) == len(marked)
    assert 'class="target"' in (chats / "report.html").read_text()


def test_inspect_colours_roles_control_tokens_and_targets_on_a_terminal(chats: Path) -> None:
    command = [sys.executable, "-m", "beam_pipeline", "inspect", chats, "--record", "train:0:0"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(master, 4096):
            shown += data
    os.close(master)
    assert process.wait() == 0
    coloured = shown.decode().replace("\r\n", "\n")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert "\x1b[36m<|im_start|>\x1b[0m\x1b[1massistant\x1b[0m\n" in coloured
    assert re.search(r"\x1b\[32m(sat ?)+<\|im_end\|>\x1b\[0m", coloured)


LONG = [
    turns(1),
    [{"role": "user", "content": "the"}, {"role": "assistant", "content": "cat sat " * 100}],
    turns(2),
]


@pytest.mark.parametrize(
    ("overlong", "documents", "counts"),
    [
        ("drop", 2, {"overlong_documents": 1}),
        ("truncate_right", 3, {}),
        ("truncate_left", 3, {}),
    ],
)
def test_long_conversations(
    overlong: str, documents: int, counts: dict[str, int], tokenizer: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "long.jsonl", LONG)
    output = run(source, tokenizer, tmp_path / "out", "--overlong", overlong)
    manifest = json.loads((output / "train" / "manifest.json").read_text())
    assert manifest["totals"]["documents"] == documents
    assert manifest["excluded"].get("overlong_documents", 0) == counts.get("overlong_documents", 0)
    assert manifest["engines"][0].get("truncated", {}).get("documents", 0) == (overlong != "drop")
    if overlong != "drop":
        longest = max(conversations_of(output / "train"), key=lambda pair: len(pair[0]))
        assert len(longest[0]) == 64
        assert (
            longest[0][0] == AutoTokenizer.from_pretrained(tokenizer).convert_tokens_to_ids("<|im_start|>")
        ) == (overlong == "truncate_right")
    assert defects(output) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["excluded"].update(overlong_documents=0, records=3), "although --overlong was not drop"),
        (lambda m: m["engines"][0].update(truncated={"documents": 1, "tokens": 9}), "did not truncate"),
        (lambda m: m["engines"][0].update(documents=9), "engines: encoded 9 documents, but 2"),
    ],
)
def test_verify_bounds_what_the_rows_cannot_show(
    change: Callable[[dict[str, Any]], None], message: str, tokenizer: Path, tmp_path: Path
) -> None:
    output = run(write(tmp_path / "a.jsonl", [turns(1), turns(2)]), tokenizer, tmp_path / "out")
    path = output / "train" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    change(manifest)
    path.write_bytes(with_checksum(manifest))
    assert any(message in defect for defect in defects(output))


def test_a_conversation_that_loses_its_targets_is_a_bad_record(tokenizer: Path, tmp_path: Path) -> None:
    question, answer = {"role": "user", "content": "the cat " * 100}, {"role": "assistant", "content": "sat"}
    source = write(tmp_path / "long.jsonl", [turns(1), [question, answer]])
    with pytest.raises(DataError, match=r"none of the 64 that --overlong truncate_right keeps is a target"):
        run(source, tokenizer, tmp_path / "out", "--overlong", "truncate_right")
    skip = ("--on_bad_record", "skip", "--max_bad_ratio", "0.5")
    output = run(source, tokenizer, tmp_path / "out", "--overlong", "truncate_right", *skip)
    manifest = json.loads((output / "train" / "manifest.json").read_text())
    assert (manifest["totals"]["documents"], manifest["excluded"]["bad_records"]) == (1, 1)
    assert "truncated" not in manifest["engines"][0]
    assert defects(output) == []


def test_a_long_conversation_is_a_bad_record(tokenizer: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "long.jsonl", LONG)
    with pytest.raises(
        DataError, match=r"line 2 .*has \d+ tokens, and a row only 64; use a larger --max_length"
    ):
        run(source, tokenizer, tmp_path / "out")
    output = run(source, tokenizer, tmp_path / "out", "--on_bad_record", "skip", "--max_bad_ratio", "0.5")
    [line] = (output / "bad_records" / "unit-000000.jsonl").read_text().splitlines()
    assert "has 2" in json.loads(line)["reason"]
    assert defects(output) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--packing", "concat"], "--packing concat: divides documents; use best_fit or pad"),
        (
            ["--packing", "none", "--output_format", "megatron"],
            "--packing none: has no place for the targets",
        ),
        (["--append_eos"], "--append_eos: does not apply to conversations, since the chat template ends"),
        (["--parse_special_tokens"], "--parse_special_tokens: does not apply to conversations"),
        (["--no_attention_mask"], "--no_attention_mask: does not apply to conversations"),
        (["--text_key", "x"], "--text_key: does not apply to --content conversation"),
        (["--input_format", "text"], "--input_format text: conversations are records"),
        (["--chat_date", "today"], "--chat_date today: is not a date; use the form 2026-07-01"),
        (["--chat_template", "nowhere.jinja"], "--chat_template nowhere.jinja: no such file"),
        (["--messages_column", "chat"], "have no key 'chat' \\(set by --messages_column\\); the keys are"),
    ],
)
def test_what_contradicts_conversations_is_refused(
    options: list[str], message: str, corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run(corpus, tokenizer, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_options_of_conversations_need_conversations(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--loss_on requires --content"):
        prepare.main(arguments(corpus, tokenizer, tmp_path / "out", "--loss_on", "all"))
    with pytest.raises(UsageError, match="--loss_on: applies to --content conversation only"):
        prepare.main(arguments(corpus, tokenizer, tmp_path / "out", "--loss_on", "all", "--content", "text"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template, which --content conversation needs"),
        ("{% for %}", "the chat template, line 1: is not a Jinja program"),
        (HARMONY, "the chat template writes today's date"),
    ],
)
def test_a_template_is_checked_before_the_run(
    template: str | None, message: str, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run(corpus, save_tokenizer(tmp_path / "tokenizer", template), tmp_path / "out")


def test_another_template_goes_with_the_dataset_and_its_fingerprint(
    chats: Path, corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.jinja").write_text(HARMONY)
    options = ("--max_length", "128", "--chat_template", str(tmp_path / "other.jinja"), "--chat_date")
    fingerprints = set()
    for number, date in enumerate(("2026-07-01", "2026-07-02")):
        output = run(corpus, tokenizer, tmp_path / f"out{number}", *options, date)
        fingerprints.add(json.loads((output / "train" / "manifest.json").read_text())["fingerprint"])
        reference = AutoTokenizer.from_pretrained(output / "tokenizer")
        assert reference.chat_template == HARMONY
        [(ids, _), *_] = conversations_of(output / "train")
        assert f"Current date: {date}" in reference.decode(ids)
        assert defects(output) == []
    assert len(fingerprints) == 2


def test_an_estimate_needs_no_output(
    corpus: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(corpus, tokenizer, tmp_path / "out", "--estimate", "--json")
    estimated = json.loads(capsys.readouterr().out)
    assert estimated["splits"]["train"]["rows"] > 0
    assert not (tmp_path / "out").exists()
