"""Seeded fuzz cases: what is read, with which tokenizer and options, into which folder, and what goes wrong meanwhile.

A case is a function of its seed and number alone, so `python -m tests.fuzz --seed S --only N` replays it.
"""

from __future__ import annotations

import bz2
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.tokenizers_for_fuzz import TOKENIZERS

# Pieces of documents: several scripts, the literals of control tokens, look-alikes of white space and of line ends.
_WORDS = ["the", "mill", "turns", "raw", "text", "into", "tokens", "and", "rows", "of", "one", "length"]
_HOSTILE = (
    *(
        "<s>",
        "</s>",
        "<pad>",
        "<mask>",
        "[MASK]",
        "[SEP]",
        "[CLS]",
        "[PAD]",
        "<|endoftext|>",
        "<unk>",
        "＜s＞",
    ),
    *(
        "日本語",
        "العربية",
        "हिन्दी",
        "Ελλάδα",
        "🙂👩‍👩‍👧",
        "e\u0301",
        "ﬁ",
        "İ",
        "ß",
        "\u200b",
        "\u202e",
        "\ufeff",
    ),
    *(
        "\u00a0",
        "\u2028",
        "\u2029",
        "\u0085",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x7f",
        "\ufffd",
        "\U0010ffff",
        "▁",
        "Ġ",
        "##a",
    ),
)
_FILE_NAMES = (
    "a.{}",
    "b c.{}",
    "[1].{}",
    "ü{{}}.{}",
    "%2e.{}",
    "-x.{}",
    "new\nline.{}",
    "*.{}",
    "UPPER.{}",
    "'\".{}",
)
_OUTPUTS = ("out", "data [v1]", "data[1]", "a*b", "what?", "sp ace/ünï", "-dash", "%41", "{x}", "link")
_NEIGHBOURS = ("data1", "data v", "ab", "axb", "out.tmp", "out1", "what1", "A", "tokenizer", "_staging")

# What an output folder may hold before a run. `same` and `other` are finished datasets of equal and of other options.
BEFORE = (
    "nothing",
    "nothing",
    "nothing",
    "empty",
    "notes",
    "staging",
    "tokenizer",
    "bad_records",
    "split",
    "report",
)
BEFORE = (*BEFORE, "same", "other", "other")
# What goes wrong. The number of the change to the file system at which it does is drawn, too.
FAULTS = (
    "none",
    "kill",
    "kill",
    "kill",
    "error",
    "error_from",
    "file_size",
    "clock",
    "input_gone",
    "second",
    "second",
)
FAULTS = (*FAULTS, "second_same", "paused", "paused_overwrite")


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    Attributes:
      name: its name in the input folder.
      content: its bytes.
      documents: what a reader must find in it, in order, blank documents left out.
      bad: how many of its records are no documents.
    """

    name: str
    content: bytes
    documents: tuple[str, ...]
    bad: int


@dataclass(frozen=True)
class Case:
    """One fuzz case.

    Attributes:
      name: for messages and folders.
      files: the input, sorted by name.
      tokenizer: a key of `TOKENIZERS`.
      options: of `prepare`, but for input, tokenizer and output.
      packing, dedup, append_eos: what of the options decides which tokens are expected.
      output: the output folder's name.
      before: of BEFORE.
      fault: of FAULTS.
      at: the change of the file system (counted from 1) at which the fault strikes.
      follow_up: the options of the run after the fault.
      mode: options that must not change the bytes.
    """

    name: str
    files: tuple[InputFile, ...]
    tokenizer: str
    options: tuple[str, ...]
    packing: str
    dedup: bool
    append_eos: bool
    skip_bad: bool
    output: str
    neighbours: tuple[str, ...]
    before: str
    fault: str
    at: int
    follow_up: tuple[str, ...]

    @property
    def documents(self) -> list[str]:
        """The documents that the dataset must hold, in no particular order."""
        found = [text for file in self.files for text in file.documents]
        return list(dict.fromkeys(found)) if self.dedup else found

    @property
    def refused(self) -> str | None:
        """Why a run without any fault must fail, if it must."""
        if not self.skip_bad and any(file.bad for file in self.files):
            return "bad records"
        if not self.documents:
            return "no documents"
        return None

    def write_input(self, folder: Path) -> None:
        """Writes the input files into a new folder."""
        folder.mkdir(parents=True)
        for file in self.files:
            (folder / file.name).write_bytes(file.content)


def make_case(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{seed}/{number}")
    document = rng.choice(("line", "line", "line", "paragraph", "file"))
    skip_bad = rng.random() < 0.4
    bad_share = rng.choice((0.0, 0.0, 0.1)) if skip_bad else rng.choice((0.0,) * 7 + (0.05,))
    kinds = ("text", "text", "jsonl", "jsonl", "parquet") if document == "line" else ("text",)
    files = _files(rng, kinds, document, bad_share)
    size = sum(len(file.content) for file in files)
    tokenizer = rng.choice(sorted(TOKENIZERS))
    packing = rng.choice(("concat", "concat", "best_fit", "pad"))
    dedup = rng.random() < 0.2
    append_eos = rng.random() < 0.3
    options = ["--document", document, "--packing", packing, "--seed", str(rng.randrange(3))]
    options += ["--max_length", str(rng.choice((8, 16, 33, 64)))]
    options += rng.choice(
        (["--shard_size", str(rng.choice((1, 7, 50, 400)))], ["--num_shards", str(rng.randint(1, 3))])
    )
    options += ["--unit_bytes", str(max(size // rng.choice((1, 3, 30)), rng.choice((1, 3, 100, 4096))))]
    options += rng.choice(
        ([], [], ["--splits", "train=0.7,validation=0.3"], ["--splits", "b=0.5,a=0.25,c=0.25"])
    )
    options += rng.choice(([], ["--split_by", "text"]))
    options += rng.choice(([], [], ["--shuffle", "none"]))
    options += rng.choice(
        ([], [], ["--segment_ids"], ["--position_ids"], ["--segment_ids", "--position_ids"])
    )
    options += ["--dedup", "exact"] if dedup else []
    options += ["--append_eos"] if append_eos else []
    options += ["--on_bad_record", "skip", "--max_bad_ratio", "1"] if skip_bad else []
    options += rng.choice(([], [], ["--engine", "hf"]))
    return Case(
        name=f"{seed}-{number}",
        files=files,
        tokenizer=tokenizer,
        options=tuple(options),
        packing=packing,
        dedup=dedup,
        append_eos=append_eos,
        skip_bad=skip_bad,
        output=rng.choice(_OUTPUTS),
        neighbours=tuple(rng.sample(_NEIGHBOURS, 4)),
        before=rng.choice(BEFORE),
        fault=rng.choice(FAULTS),
        at=int(2 ** rng.uniform(0, 6)),
        follow_up=rng.choice(((), ("--resume",), ("--resume",), ("--overwrite",))),
    )


def _files(
    rng: random.Random, kinds: tuple[str, ...], document: str, bad_share: float
) -> tuple[InputFile, ...]:
    files = {}
    for name in rng.sample(_FILE_NAMES, rng.randint(1, 4)):
        kind = rng.choice(kinds)
        texts = [_document(rng) for _ in range(int(2 ** rng.uniform(0, 7)))]
        file = (
            _MAKERS[kind](rng, name, texts, bad_share)
            if kind != "text"
            else _text(rng, name, texts, document)
        )
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
        # Separated by blank lines; the first and the last bytes of a paragraph are not white space.
        inner = [[part for part in text.split(" ") if part.strip()] or ["a"] for text in texts]
        joined = [newline.join(parts) for parts in inner]
        body = (newline * 2).join(joined) + rng.choice(("", newline))
        documents = [text.replace("\r\n", "\n") for text in joined]
        if document == "file":
            documents = [body.removesuffix("\r").replace("\r\n", "\n")]
    content = body.encode()
    if (rng.random() < 0.2 and not content.startswith(b"\xef\xbb\xbf")) or content.startswith(
        b"\xef\xbb\xbf"
    ):
        content = b"\xef\xbb\xbf" + content
    return _packed(rng, name.format("txt"), content, documents, 0)


def _jsonl(rng: random.Random, name: str, texts: list[str], bad_share: float) -> InputFile:
    lines, documents, bad = [], [], 0
    broken = ('{"text": ', '{"other": "a"}', '{"text": 3}', "[1]", '{"text": "\\ud800"}', "\xff")
    for text in texts:
        text = text.replace("tokens", rng.choice(("tokens", "to\nkens", "\t", "\u0000")))
        if rng.random() < bad_share:
            lines.append(rng.choice(broken).encode("latin-1"))
            bad += 1
        else:
            lines.append(json.dumps({"id": 1, "text": text}, ensure_ascii=rng.random() < 0.5).encode())
            documents.append(text)
    content = b"\n".join(lines) + rng.choice((b"", b"\n"))
    return _packed(rng, name.format("jsonl"), content, documents, bad)


def _parquet(rng: random.Random, name: str, texts: list[str], bad_share: float) -> InputFile:
    values = [None if rng.random() < bad_share else text for text in texts]
    column = pa.array(values, pa.string())
    column = column.dictionary_encode() if rng.random() < 0.3 else column
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": column}), sink, row_group_size=rng.choice((1, 10, 1000)))
    documents = tuple(text for text in values if text is not None and text.strip())
    return InputFile(name.format("parquet"), sink.getvalue().to_pybytes(), documents, values.count(None))


_MAKERS = {"jsonl": _jsonl, "parquet": _parquet}


def _packed(rng: random.Random, name: str, content: bytes, documents: list[str], bad: int) -> InputFile:
    solid = tuple(text for text in documents if text and not text.isspace())
    codec = rng.choice(("", "", "", ".gz", ".bz2", ".zst"))
    if codec == ".gz":
        middle = rng.randrange(len(content) + 1)  # files of several members are common
        content = gzip.compress(content[:middle], mtime=0) + gzip.compress(content[middle:], mtime=0)
    elif codec == ".bz2":
        content = bz2.compress(content)
    elif codec == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    return InputFile(name + codec, content, solid, bad)
