"""Documents that are cut in three for infilling: their parts, the choice of documents, and whole datasets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from beam_pipeline.engines.infilling import Infilling, InfillingTokenizer, sentinels
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, content, defects
from tokenmill_reader import Dataset

SENTINELS = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")
TEXTS = [
    f"def f_{number}(x):\n    return x * {number}  # naïve 猫 {'é' * (number % 5)}\n" for number in range(400)
]


def save_tokenizer(folder: Path, tokens: tuple[str, ...] = SENTINELS, *, special: bool = True) -> Path:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_special_tokens(["<eos>"])
    core.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def encode(tokenizer: Path, texts: list[str], **options: Any) -> list[list[int]]:
    described = describe_tokenizer(str(tokenizer))
    prefix, middle, suffix = sentinels(described.json, described.control_ids, None)
    defaults = {"rate": 1.0, "spm_rate": 0.5, "max_length": None, "seed": 0}
    infilling = Infilling(prefix=prefix, middle=middle, suffix=suffix, **(defaults | options))
    encoder = InfillingTokenizer(
        infilling,
        tokenizer_json=described.json,
        vocab_size=described.vocab_size,
        template=described.template_of(True),
        engine="auto",
        control_ids=described.control_ids,
    )
    batch = DocumentBatch("a.jsonl", Texts.of(texts), 10 * np.arange(len(texts)))
    batch, documents = encoder.encode(batch)
    assert list(batch.texts) == texts
    return [part.tolist() for part in np.split(documents.ids, np.cumsum(documents.lengths)[:-1])]


def parts_of(ids: list[int], reference: Any) -> tuple[str, str, str, str] | None:
    """Returns the order (PSM or SPM), and the texts of prefix, middle and suffix; None if the document is whole."""
    prefix, middle, suffix = map(reference.convert_tokens_to_ids, SENTINELS)
    assert ids[-1] == reference.eos_token_id
    ids = ids[:-1]
    if prefix not in ids:
        return None
    assert Counter(number for number in ids if number in (prefix, middle, suffix)) == {
        prefix: 1,
        middle: 1,
        suffix: 1,
    }
    assert ids[0] == prefix
    at_suffix, at_middle = ids.index(suffix), ids.index(middle)
    if at_suffix == 1:
        tail = ids[at_middle + 1 :]
        return "SPM", reference.decode(tail), "", reference.decode(ids[2:at_middle])
    first, last = ids[1:at_suffix], ids[at_suffix + 1 : at_middle]
    # As Megatron-LM: each part is tokenized by itself.
    for part in (first, last, ids[at_middle + 1 :]):
        assert part == reference.encode(reference.decode(part), add_special_tokens=False)
    return "PSM", reference.decode(first), reference.decode(ids[at_middle + 1 :]), reference.decode(last)


def ascii_texts() -> list[str]:
    return [text.encode("ascii", "ignore").decode() for text in TEXTS]


def test_each_document_is_cut_in_three_and_keeps_its_text(tokenizer: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer)
    orders: Counter[str] = Counter()
    places = []
    for text, ids in zip(TEXTS, encode(tokenizer, TEXTS), strict=True):
        order, prefix, middle, suffix = parts_of(ids, reference)
        assert prefix + middle + suffix == text
        orders[order] += 1
        places.append(len(suffix) / len(text))
    assert 160 < orders["PSM"] < 240
    # The larger of two uniform cuts leaves a third of the text behind it, on average.
    assert 0.28 < np.mean(places) < 0.39


def test_rates_select_documents_by_their_place_and_the_seed(tokenizer: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer)

    def cut(**options: Any) -> list[bool]:
        return [parts_of(ids, reference) is not None for ids in encode(tokenizer, TEXTS, **options)]

    assert not any(cut(rate=0.0))
    some = cut(rate=0.3)
    assert 80 < sum(some) < 160
    assert cut(rate=0.3) == some != cut(rate=0.3, seed=1)
    whole = encode(tokenizer, TEXTS, rate=0.3)
    halves = encode(tokenizer, TEXTS[:200], rate=0.3)
    assert whole[:200] == halves  # whatever the batch


def test_a_document_that_is_too_long_stays_whole(tokenizer: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer)
    texts = [TEXTS[1], TEXTS[1] * 20]
    short, long = encode(tokenizer, texts, max_length=100)
    assert parts_of(short, reference) is not None
    assert long == [*reference.encode(texts[1], add_special_tokens=False), reference.eos_token_id]


@pytest.mark.parametrize(
    ("tokens", "special", "names", "message"),
    [
        ((), True, None, "has no sentinels that are known"),
        (SENTINELS, True, ("<a>", "<b>", "<c>"), "'<a>' is not in the tokenizer's vocabulary"),
        (SENTINELS, False, None, "'<fim_prefix>' is not a special token, so text could forge it"),
    ],
)
def test_sentinels_must_be_special_tokens(
    tokens: tuple[str, ...], special: bool, names: Any, message: str, tmp_path: Path
) -> None:
    described = describe_tokenizer(str(save_tokenizer(tmp_path, tokens, special=special)))
    with pytest.raises(UsageError, match=message):
        sentinels(described.json, described.control_ids, names)


def test_a_tokenizer_must_not_write_spaces_before_the_parts(tmp_path: Path) -> None:
    described = describe_tokenizer(str(save_tokenizer(tmp_path)))
    adding = described.json.replace('"add_prefix_space": false', '"add_prefix_space": true')
    assert adding != described.json
    with pytest.raises(UsageError, match="a space before each text, so each cut would add one"):
        sentinels(adding, described.control_ids, None)


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_a_dataset_has_all_texts_and_whole_groups(
    packing: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "code.jsonl"
    texts = [*ascii_texts(), "<fim_prefix>forged"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--fim_rate", "0.5", "--append_eos", "--max_length", "64"]
    if packing == "concat":
        options += ["--packing", "concat"]
    prepare.main(arguments(source, tokenizer, tmp_path / "out", *options))
    prepare.main(arguments(source, tokenizer, tmp_path / "small", *options, "--unit_bytes", "3000"))
    assert defects(tmp_path / "out") == defects(tmp_path / "small") == []
    reference = AutoTokenizer.from_pretrained(tokenizer)
    found = {}
    for name in ("out", "small"):
        dataset = Dataset.open(tmp_path / name / "train")
        rows = [dataset[number] for number in range(len(dataset))]
        if packing == "best_fit":  # each document is in one row, and ends with eos
            documents: list[list[int]] = []
            for row in rows:
                ids = row["input_ids"][row["attention_mask"] > 0]
                ends = np.flatnonzero(ids == reference.eos_token_id) + 1
                documents += [part.tolist() for part in np.split(ids, ends)[:-1]]
            parts = [parts_of(ids, reference) for ids in documents]
            whole = [
                reference.decode(ids[:-1]) if cut is None else "".join(cut[1:])
                for ids, cut in zip(documents, parts, strict=True)
            ]
            assert sorted(whole) == sorted(texts)
            cuts = sum(cut is not None for cut in parts)
            assert 100 < cuts < 300
            manifest = json.loads((tmp_path / name / "train" / "manifest.json").read_text())
            [engine] = manifest["engines"]
            assert engine["infilled"] == {"documents": cuts, "whole": 0}
            found[name] = sorted(documents)
    assert found.get("out") == found.get("small")
    shards = {name: data for name, data in content(tmp_path / "out").items() if name.endswith(".tfrecord")}
    prepare.main([*arguments(source, tokenizer, tmp_path / "again", *options), "--engine", "hf"])
    assert shards == {
        name: data for name, data in content(tmp_path / "again").items() if name.endswith(".tfrecord")
    }


def test_the_summary_counts_what_is_too_long_to_be_cut(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "code.jsonl"
    source.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in (TEXTS[1], TEXTS[2] * 20, TEXTS[3]))
    )
    prepare.main(arguments(source, tokenizer, tmp_path / "out", "--fim_rate", "1", "--max_length", "64"))
    line = "2 documents were cut for infilling; 1 more stay whole, being too long for a row"
    assert line in capsys.readouterr().out.splitlines()
    assert defects(tmp_path / "out") == []


def test_options_of_infilling_are_checked(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    for options, message in (
        (["--fim_spm_rate", "1"], "--fim_spm_rate requires --fim_rate"),
        (["--fim_rate", "1", "--fim_tokens", "<a>,<b>"], "is not PREFIX,MIDDLE,SUFFIX"),
        (["--fim_rate", "2"], "--fim_rate 2.0: must be from 0 to 1"),
        (["--fim_rate", "1", "--parse_special_tokens"], "text could forge the tokens that mark the parts"),
    ):
        with pytest.raises(UsageError, match=message):
            prepare.main(arguments(tmp_path / "a.txt", tokenizer, tmp_path / "out", *options))
