"""The same command gives the same bytes as earlier versions of this code.

`python -m tests.beam_pipeline.test_stored_bytes` writes `stored/bytes.json`: only after raising `_BYTES_VERSION`,
unless nothing but the manifests changes.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest

from beam_pipeline.dataset import manifest
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments
from tests.fuzz.tokenizers_for_fuzz import write_tokenizer
from tokenmill_reader.format.inputs import describe_inputs
from tokenmill_reader.format.json_text import json_bytes
from tokenmill_reader.format.manifest import checksum_of, describe_file, fingerprint_of
from tokenmill_reader.format.names import INPUTS

STORED = Path(__file__).with_name("stored")

_WORDS = ["the", "mill", "turns", "raw", "text", "into", "tokens", "rows", "of", "one", "length"]
_WORDS += ["ß", "日本語", "Ελλάδα", "oddmillth", "</s>", "[MASK]", "<|endoftext|>", "ＮＦＫＣ", "tokens,"]
_WORDS.append("length.")

_SMALL = ["--unit_bytes", "4000", "--max_length", "32", "--seed", "7"]

# The tokenizer's kind, the input's file, and options that together reach every part that decides bytes.
RUNS = {
    "masked, packed and shuffled": (
        "byte_level",
        "lines.txt",
        ["--splits", "train=0.9,validation=0.1", "--shard_size", "300"],
    ),
    "causal, best fit": (
        "byte_level",
        "documents.jsonl",
        ["--packing", "best_fit", "--append_eos", "--segment_ids", "--position_ids", "--num_shards", "5"],
    ),
    "paragraphs without duplicates": (
        "wordpiece",
        "paragraphs.txt",
        [
            *["--document", "paragraph", "--dedup", "exact", "--split_by", "text", "--segment_ids"],
            "--splits",
            "b=0.3,a=0.7",
        ],
    ),
    "padded, in order, special tokens parsed": (
        "unigram",
        "documents.jsonl",
        ["--packing", "pad", "--shuffle", "none", "--parse_special_tokens", "--on_bad_record", "skip"],
    ),
}


def write_corpus(folder: Path) -> None:
    """The same text in three formats: a document per line, paragraphs, and JSON lines."""
    rng = random.Random(14)
    texts = [" ".join(rng.choices(_WORDS, k=rng.randint(1, 60))) for _ in range(200)]
    texts += texts[20:60]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    paragraphs = [text.replace(". ", ".\n") for text in texts]
    (folder / "paragraphs.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepared(folder: Path, name: str) -> dict:
    """Runs one of `RUNS` in `folder`, and returns everything that must not change.

    Only the input's place and the versions and engines that made it are excluded from its checksum and its fingerprint.
    """
    kind, file, options = RUNS[name]
    output = folder / name.split(",")[0]
    tokenizer = folder / kind
    if not tokenizer.exists():
        write_tokenizer(kind, tokenizer)
    prepare.main(arguments(folder / file, tokenizer, output, *_SMALL, *options))
    checksums_by_split = {}
    for split in manifest.finished_splits(str(output)):
        content = manifest.read_manifest(str(output / split))
        run = [content["bytes_version"], content["config"], content["inputs"], content["tokenizer"]]
        assert content["fingerprint"] == fingerprint_of(*run)
        for key in ("versions", "engines", "checksum"):
            del content[key]
        entry = content["inputs"]
        data = (output / INPUTS).read_bytes()
        assert entry == describe_inputs(data, files=entry["files"], input_bytes=entry["input_bytes"])
        entry |= describe_inputs(
            data.replace(f"{folder}/".encode(), b""), files=entry["files"], input_bytes=entry["input_bytes"]
        )
        for entry in content["files"]:
            data = (output / split / entry["path"]).read_bytes().replace(f"{folder}/".encode(), b"")
            entry |= describe_file(entry["path"], data)
        content["fingerprint"] = fingerprint_of(*run)
        checksums_by_split[split] = {
            "fingerprint": content["fingerprint"],
            "manifest": checksum_of(json_bytes(content)),
            "files": {entry["path"]: entry["crc32c"] for entry in content["files"]},
            "shards": {entry["name"]: entry["crc32c"] for entry in content["shards"]},
        }
    return checksums_by_split


@pytest.mark.parametrize("name", RUNS)
def test_the_same_command_gives_the_stored_bytes(name: str, tmp_path: Path):
    write_corpus(tmp_path)
    assert prepared(tmp_path, name) == json.loads((STORED / "bytes.json").read_text())[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write_corpus(Path(place))
        stored = {name: prepared(Path(place), name) for name in RUNS}
    (STORED / "bytes.json").write_text(json.dumps(stored, indent=1) + "\n")
