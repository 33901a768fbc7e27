"""The tokens around documents, and the effect of `prepare`'s options on a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.template import Template, find_template
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from beam_pipeline.verbs import prepare, verify
from beam_pipeline.views.reading import open_split
from tests.beam_pipeline.runs import arguments

BPE = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture
def save(tmp_path: Path, make_tokenizer: Callable[[str], str]) -> Callable[..., Path]:
    """Saves a tokenizer of one of the kinds, with this post-processor and config, as a folder."""

    def write(name: str, processor: processors.PostProcessor | None = None, **config: str) -> Path:
        tokenizer = Tokenizer.from_str(make_tokenizer(name))
        if processor is not None:
            tokenizer.post_processor = processor
        folder = tmp_path / "saved"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return write


def tokenizer_of(folder: Path, append_eos: bool = False, **options: object) -> DocumentTokenizer:
    description = describe_tokenizer(str(folder))
    return DocumentTokenizer(
        tokenizer_json=description.json,
        vocab_size=description.vocab_size,
        template=description.template_of(append_eos),
        control_ids=description.control_ids,
        engine="auto",
        **options,
    )


def encode(tokenizer: DocumentTokenizer, texts: list[str]) -> list[list[int]]:
    encoded = Texts.of(texts)
    _, documents = tokenizer.encode(DocumentBatch("x", encoded, encoded.ends))
    assert documents.ids.dtype == np.uint16
    return [part.tolist() for part in np.split(documents.ids, np.cumsum(documents.lengths)[:-1])]


def _processors() -> dict[str, tuple[processors.PostProcessor, list[str], list[str]]]:
    s, e = ("<s>", 1500), ("</s>", 1501)
    template = processors.TemplateProcessing(single="<s> <s> $A </s>", special_tokens=[s, e])
    return {
        "byte-level": (processors.ByteLevel(trim_offsets=True), [], []),
        "roberta": (processors.RobertaProcessing(e, s), ["<s>"], ["</s>"]),
        "bert": (processors.BertProcessing(e, s), ["<s>"], ["</s>"]),
        "template": (template, ["<s>", "<s>"], ["</s>"]),
        "sequence": (processors.Sequence([processors.ByteLevel(), template]), ["<s>", "<s>"], ["</s>"]),
    }


@pytest.mark.parametrize("name", _processors())
def test_documents_are_as_hf_encodes_them(name: str, save: Callable[..., Path]):
    processor, prefix, suffix = _processors()[name]
    folder = save("bpe-gpt2", processor, **BPE)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tuple(map(tokenizer.token_to_id, tokens)) for tokens in (prefix, suffix)]
    assert find_template(load_tokenizer(tokenizer.to_str())) == Template(*ids)
    texts = ["one text", "", "a", "two of\nthem 漢字"]
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert encode(tokenizer_of(folder), texts) == expected
    # Exactly one eos token ends each document, whether or not the template has one.
    eos = tokenizer.token_to_id("</s>")
    texts_with_eos = [text if text[-1:] == [eos] else [*text, eos] for text in expected]
    assert encode(tokenizer_of(folder, append_eos=True), texts) == texts_with_eos


def test_only_templates_are_taken(save: Callable[..., Path]):
    tokenizer = Tokenizer.from_file(str(save("bpe-gpt2") / "tokenizer.json"))
    for template in ("<s> </s>", "<s> $A <s> $A"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1500), ("</s>", 1501)]
        )
        with pytest.raises(UsageError, match="only templates that put tokens before and after"):
            find_template(load_tokenizer(tokenizer.to_str()))


def test_no_eos_token_to_append(save: Callable[..., Path]):
    description = describe_tokenizer(str(save("bpe-gpt2")))
    with pytest.raises(UsageError, match="has no eos token, which --append_eos needs"):
        description.template_of(True)


def test_a_pad_token_by_name(save: Callable[..., Path]):
    folder = save("bpe-gpt2", **BPE)
    (folder / "special_tokens_map.json").write_text(json.dumps(BPE))
    with pytest.raises(UsageError, match="has no pad token"):
        describe_tokenizer(str(folder)).require("pad", "padding")
    with pytest.raises(UsageError, match="--pad_token <nothing>: is not in the vocabulary"):
        describe_tokenizer(str(folder), "<nothing>")
    description = describe_tokenizer(str(folder), "<|endoftext|>")
    number = Tokenizer.from_str(description.json).token_to_id("<|endoftext|>")
    assert description.require("pad", "padding") == number
    assert number in description.all_special_ids
    assert description.sha256 == describe_tokenizer(str(folder)).sha256  # the tokenizer itself is the same
    copy = folder.parent / "copy"
    copy.mkdir()
    for name, data in description.files.items():
        (copy / name).write_bytes(data)
    assert AutoTokenizer.from_pretrained(copy).pad_token_id == number


def test_the_options_of_prepare(save: Callable[..., Path], tmp_path: Path):
    """The shards correspond to the options; each option gives a different dataset of the same text."""
    folder = save("bpe-gpt2", **BPE)
    text = tmp_path / "text.txt"
    text.write_text("one </s> two\nthree\n")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos, pad = tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|endoftext|>")
    fingerprints = set()
    for options, count in (([], 0), (["--append_eos"], 2), (["--append_eos", "--parse_special_tokens"], 3)):
        output = tmp_path / "-".join(["out", *options])
        prepare_options = [
            "--max_length",
            "64",
            "--shuffle",
            "none",
            "--pad_token",
            "<|endoftext|>",
            *options,
        ]
        prepare.main(arguments(text, folder, output, *prepare_options))
        manifest = json.loads((output / "train" / "manifest.json").read_text())
        assert manifest["tokenizer"]["special_token_ids"]["pad"] == pad
        fingerprints.add(manifest["fingerprint"])
        (row,) = open_split(str(output / "train")).rows(0)
        assert (row.ids == eos).sum() == count
        assert AutoTokenizer.from_pretrained(output / "tokenizer").pad_token_id == pad
    assert len(fingerprints) == 3


@pytest.mark.parametrize("config", [{}, BPE], ids=["no eos token", "an eos token"])
def test_a_tokenizer_without_a_pad_token_pads_with_any_id(
    config: dict, save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = save("bpe-gpt2", **config)
    text = tmp_path / "text.txt"
    text.write_text("one two\nthree\n")
    command = ["--input", str(text), "--tokenizer", str(folder), "--max_length", "64"]
    with pytest.raises(UsageError, match="has no pad token, which --no_attention_mask needs"):
        prepare.main([*command, "--output", str(tmp_path / "none"), "--no_attention_mask"])
    capsys.readouterr()
    prepare.main([*command, "--output", str(tmp_path / "out")])
    pad = 1501 if config else 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "pad token" in line]
    assert len(notes) == 1 and f"padded with the id {pad} " in notes[0]
    manifest = json.loads((tmp_path / "out" / "train" / "manifest.json").read_text())
    assert manifest["tokenizer"]["special_token_ids"]["pad"] == pad
    assert manifest["totals"]["padding"] > 0
    verify.main([str(tmp_path / "out")])  # whole
    AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
