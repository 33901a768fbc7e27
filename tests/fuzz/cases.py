"""Seeded fuzz cases: the input, tokenizer and options of a run, its output folder, and the fault that happens to it.

A case depends only on its seed and number, so `python -m tests.fuzz --seed S --only N` replays it.
"""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.curation import Curation, draw_curation, with_lines
from tests.fuzz.tokenizers_for_fuzz import TOKENIZERS
from tokenmill_reader.format.names import DOCUMENT_FORMATS, ROW_FORMATS

# Pieces of documents: several scripts, the text of control tokens, and characters similar to white space or line ends.
_WORDS = ["the", "mill", "turns", "raw", "text", "into", "tokens", "and", "rows", "of", "one", "length"]
_HOSTILE = (
    *("<s>", "</s>", "<pad>", "<mask>", "[MASK]", "[SEP]", "[CLS]", "[PAD]", "<|endoftext|>"),
    *("<unk>", "＜s＞", "日本語", "العربية", "हिन्दी", "Ελλάδα", "🙂👩‍👩‍👧", "e\u0301", "ﬁ", "İ"),
    *("ß", "\u200b", "\u202e", "\ufeff", "\u00a0", "\u2028", "\u2029", "\u0085", "\x0b", "\x0c"),
    *("\x1c", "\x7f", "\ufffd", "\U0010ffff", "▁", "Ġ", "##a"),
)
_FILE_NAMES = ("a.{}", "b c.{}", "[1].{}", "ü{{}}.{}", "%2e.{}", "-x.{}", "new\nline.{}", "*.{}", "UPPER.{}")
_FILE_NAMES = (*_FILE_NAMES, "'\".{}")
_OUTPUTS = ("out", "data [v1]", "data[1]", "a*b", "what?", "sp ace/ünï", "-dash", "%41", "{x}", "link")
_NEIGHBOURS = ("data1", "data v", "ab", "axb", "out.tmp", "out1", "what1", "A", "tokenizer", "_staging")

# Contents of an output folder before a run. `same` and `other` are finished datasets with equal and other options.
BEFORE = ("nothing", "nothing", "nothing", "empty", "notes", "staging", "tokenizer", "bad_records", "split")
BEFORE = (*BEFORE, "report", "same", "other", "other")
# Faults. The change to the file system at which the fault happens is random, too.
FAULTS = ("none", "kill", "kill", "kill", "error", "error_from", "file_size", "clock", "input_gone")
FAULTS = (*FAULTS, "second", "second", "second_same", "paused", "paused_overwrite")


@dataclass(frozen=True)
class InputFile:
    """A file of the input."""

    name: str
    """Its name in the input folder."""
    content: bytes
    documents: tuple[str, ...]
    """The documents that a reader must find in it, in order, without blank ones."""
    bad_records: int
    """Number of its records that are not documents."""
    places: tuple[int, ...] = ()
    """The place of each document: the byte of the uncompressed file, or the row; none if they are not known here."""


@dataclass(frozen=True)
class Case:
    """One fuzz case."""

    name: str
    """Name of its folder."""
    files: tuple[InputFile, ...]
    """The input, sorted by name."""
    tokenizer: str
    """A key of `TOKENIZERS`."""
    options: tuple[str, ...]
    """Options of `prepare`, except input, tokenizer, output, its format, and those of `curation`. The oracle needs some
    of them, so these are also fields below: `packing`, `append_eos`, `skip_bad`."""
    curation: Curation
    """What is removed."""
    output_format: str
    """Format of the dataset that the run with the fault writes."""
    converted_from: str | None
    """The format of a dataset that `convert` reads in the run with the fault. None if that is a run of `prepare`."""
    packing: str
    append_eos: bool
    skip_bad: bool
    output: str
    """Name of the output folder."""
    neighbours: tuple[str, ...]
    """Names of folders beside the output folder, which no run may change."""
    before: str
    """One of BEFORE."""
    fault: str
    """One of FAULTS."""
    fault_change: int
    """The change to the file system at which the fault happens, counted from 1."""
    follow_up: tuple[str, ...]
    """Additional options of the run after the fault."""

    @property
    def verb(self) -> str:
        """The verb of the run with the fault."""
        return "prepare" if self.converted_from is None else "convert"

    @property
    def documents(self) -> list[str]:
        """The documents that the dataset must contain, in no particular order."""
        texts = [text for file in self.files for text in file.documents]
        restored = [place is not None for _, place in self._restored()]
        return self.curation.left(texts, restored)

    def _restored(self) -> list[tuple[str, int | None]]:
        """Returns the file of each document, and its place if it is restored."""
        places = [
            (file.name, place)
            for file in self.files
            for place in (file.places or [None] * len(file.documents))
        ]
        every = self.curation.restore_every
        return [
            (name, place if every and number % every == 0 else None)
            for number, (name, place) in enumerate(places)
        ]

    @property
    def is_refused(self) -> str | None:
        """The reason for which even a run without a fault must fail, or None."""
        if not self.skip_bad and any(file.bad_records for file in self.files):
            return "bad records"
        if not self.documents:
            return "no documents"
        return None

    def write_input(self, folder: Path) -> None:
        """Writes the input files into a new folder, and those of the curation beside it."""
        folder.mkdir(parents=True)
        for file in self.files:
            (folder / file.name).write_bytes(file.content)
        restored = [(str(folder / name), place) for name, place in self._restored() if place is not None]
        self.curation.write(folder.parent, *(zip(*restored, strict=True) if restored else ((), ())))


def make_case(seed: int, number: int) -> Case:
    """Returns the case with this number."""
    rng = random.Random(f"{seed}/{number}")
    document = rng.choice(("line", "line", "line", "paragraph", "file"))
    skip_bad = rng.random() < 0.4
    bad_share = rng.choice((0.0, 0.0, 0.1)) if skip_bad else rng.choice((0.0,) * 7 + (0.05,))
    kinds = ("text", "text", "jsonl", "jsonl", "parquet") if document == "line" else ("text",)
    curating = random.Random(f"{seed}/{number}/curation")  # the rest of a case does not depend on its draws
    has_lines = curating.random() < 0.5 and document == "line"
    files = _files(rng, kinds, document, bad_share, curating if has_lines else None)
    size = sum(len(file.content) for file in files)
    tokenizer = rng.choice(sorted(TOKENIZERS))
    packing = rng.choice(("concat", "concat", "best_fit", "pad", "none"))
    formats = DOCUMENT_FORMATS if packing == "none" else ROW_FORMATS
    output_format = rng.choice(("tfrecord", "tfrecord", *formats) if packing != "none" else formats)
    other_formats = [name for name in formats if name != output_format]
    converted_from = rng.choice((None, None, rng.choice(other_formats)))
    dedup = rng.choice((*["none"] * 8, "exact", "near"))
    curation = draw_curation(curating, dedup)
    append_eos = rng.random() < 0.3
    options = ["--document", document, "--packing", packing, "--seed", str(rng.randrange(3))]
    options += ["--max_length", str(rng.choice((8, 16, 33, 64)))] if packing != "none" else []
    options += rng.choice(
        (["--shard_size", str(rng.choice((1, 7, 50, 400)))], ["--num_shards", str(rng.randint(1, 3))])
    )
    options += ["--unit_bytes", str(max(size // rng.choice((1, 3, 30)), rng.choice((1, 3, 100, 4096))))]
    options += rng.choice(
        ([], [], ["--splits", "train=0.7,validation=0.3"], ["--splits", "b=0.5,a=0.25,c=0.25"])
    )
    options += rng.choice(([], ["--split_by", "text"]))
    if packing != "none":
        options += rng.choice(([], [], ["--shuffle", "none"]))
        options += rng.choice(
            ([], [], ["--segment_ids"], ["--position_ids"], ["--segment_ids", "--position_ids"])
        )
    options += ["--append_eos"] if append_eos else []
    options += ["--on_bad_record", "skip", "--max_bad_ratio", "1"] if skip_bad else []
    options += rng.choice(([], [], ["--engine", "hf"]))
    return Case(
        name=f"{seed}-{number}",
        files=files,
        tokenizer=tokenizer,
        options=tuple(options),
        output_format=output_format,
        converted_from=converted_from,
        packing=packing,
        curation=curation,
        append_eos=append_eos,
        skip_bad=skip_bad,
        output=rng.choice(_OUTPUTS),
        neighbours=tuple(rng.sample(_NEIGHBOURS, 4)),
        before=rng.choice(BEFORE),
        fault=rng.choice(FAULTS),
        fault_change=int(2 ** rng.uniform(0, 6)),
        follow_up=rng.choice(((), ("--resume",), ("--resume",), ("--overwrite",))),
    )


def _files(
    rng: random.Random,
    kinds: tuple[str, ...],
    document: str,
    bad_share: float,
    curating: random.Random | None,
) -> tuple[InputFile, ...]:
    files = {}
    for name in rng.sample(_FILE_NAMES, rng.randint(1, 4)):
        kind = rng.choice(kinds)
        texts = [_document(rng) for _ in range(int(2 ** rng.uniform(0, 7)))]
        if curating and kind != "text":
            texts = [with_lines(curating, text) for text in texts]
        make = _MAKERS.get(kind, _text)
        file = make(rng, name, texts, document if kind == "text" else bad_share)
        files[file.name] = file
    return tuple(files[name] for name in sorted(files))


def _document(rng: random.Random) -> str:
    if rng.random() < 0.05:
        return rng.choice(("", " ", "\u00a0", "a", "x" * rng.randint(1, 3000), "<s>" * 50, " a ", "the mill"))
    words = [
        rng.choice(_HOSTILE) if rng.random() < 0.15 else rng.choice(_WORDS) for _ in range(rng.randint(1, 40))
    ]
    return rng.choice((" ", " ", " ", "")).join(words)


def _text(rng: random.Random, name: str, texts: list[str], document: str) -> InputFile:
    newline = rng.choice(("\n", "\n", "\r\n"))
    if document == "line":
        body, documents = newline.join(texts) + rng.choice(("", newline)), texts
    else:
        # Blank lines separate paragraphs, which neither begin nor end with white space.
        words_by_text = [[part for part in text.split(" ") if part.strip()] or ["a"] for text in texts]
        paragraph_texts = [newline.join(parts) for parts in words_by_text]
        body = (newline * 2).join(paragraph_texts) + rng.choice(("", newline))
        documents = [text.replace("\r\n", "\n") for text in paragraph_texts]
        if document == "file":
            documents = [body.removesuffix("\r").replace("\r\n", "\n")]
    content = body.encode()
    bom = b"\xef\xbb\xbf"
    if rng.random() < 0.2 or content.startswith(bom):
        content = bom + content
    return _packed(rng, name.format("txt"), content, documents, 0)


def _jsonl(rng: random.Random, name: str, texts: list[str], bad_share: float) -> InputFile:
    lines, documents, places, bad_count = [], [], [], 0
    broken_records = ('{"text": ', '{"other": "a"}', '{"text": 3}', "[1]", '{"text": "\\ud800"}', "\xff")
    for text in texts:
        text = text.replace("tokens", rng.choice(("tokens", "to\nkens", "\t", "\u0000")))
        if rng.random() < bad_share:
            lines.append(rng.choice(broken_records).encode("latin-1"))
            bad_count += 1
        else:
            lines.append(json.dumps({"id": 1, "text": text}, ensure_ascii=rng.random() < 0.5).encode())
            documents.append(text)
            places.append(sum(map(len, lines[:-1])) + len(lines) - 1)
    content = b"\n".join(lines) + rng.choice((b"", b"\n"))
    return _packed(rng, name.format("jsonl"), content, documents, bad_count, places)


def _parquet(rng: random.Random, name: str, texts: list[str], bad_share: float) -> InputFile:
    values = [None if rng.random() < bad_share else text for text in texts]
    column = pa.array(values, pa.string())
    column = column.dictionary_encode() if rng.random() < 0.3 else column
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": column}), sink, row_group_size=rng.choice((1, 10, 1000)))
    rows = [row for row, text in enumerate(values) if text is not None and text.strip()]
    documents, content = tuple(values[row] for row in rows), sink.getvalue().to_pybytes()
    return InputFile(name.format("parquet"), content, documents, values.count(None), tuple(rows))


_MAKERS = {"jsonl": _jsonl, "parquet": _parquet}


def _packed(
    rng: random.Random,
    name: str,
    content: bytes,
    documents: list[str],
    bad_count: int,
    places: Sequence[int] = (),
) -> InputFile:
    is_text = [bool(text) and not text.isspace() for text in documents]
    non_blank, places = (tuple(compress(values, is_text)) for values in (documents, places))
    codec = rng.choice(("", "", "", ".gz", ".bz2", ".zst"))
    if codec == ".gz":
        member_end = rng.randrange(len(content) + 1)  # gzip files with several members are common
        content = gzip.compress(content[:member_end], mtime=0) + gzip.compress(content[member_end:], mtime=0)
    elif codec == ".bz2":
        content = bz2.compress(content)
    elif codec == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    return InputFile(name + codec, content, non_blank, bad_count, places)
