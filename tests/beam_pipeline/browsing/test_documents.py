"""From documents to rows and back, for every packing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.browsing.opened import OpenDataset, OpenSplit
from beam_pipeline.verbs import prepare
from beam_pipeline.views.reading import open_dataset
from beam_pipeline.views.tracing import NotTraced
from tests.beam_pipeline.runs import arguments

PACKINGS = {
    "concat": ["--packing", "concat"],
    "best_fit": ["--packing", "best_fit"],
    "pad": ["--packing", "pad"],
    "dedup": ["--dedup", "exact", "--shuffle", "none"],
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_documents_rows_are_those_that_are_traced_to_it(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, packing: str
):
    source = tmp_path / "a.txt"
    lines = corpus.read_bytes().splitlines(keepends=True)[:90]
    source.write_bytes(b"".join(lines + lines[:20]))
    options = ["--unit_bytes", "5000", "--max_length", "48", "--splits", "train=0.8,validation=0.2"]
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", *options, *PACKINGS[packing]))
    for opened in OpenDataset([OpenSplit(split) for split in open_dataset(str(tmp_path / "out"))]).splits:
        traced: dict[tuple[int, int], set[int]] = {}
        tokens = 0
        for number, row in enumerate(opened.access.rows(range(len(opened.access)))):
            origin = opened.split.origin(*opened.access.place(number))
            for part in opened.documents.parts_of(origin, row):
                traced.setdefault((part.unit.index, part.number), set()).add(number)
                ids = opened.documents.unit(part.unit.index).ids(part.number)
                ids = ids[part.offset : part.offset + part.end - part.first]
                assert np.array_equal(ids, row.ids[part.first : part.end])
                tokens += len(ids)
        assert tokens == opened.split.manifest["totals"]["tokens"]
        documents = 0
        for unit in range(len(opened.split.units)):
            packed = opened.documents.unit(unit)
            documents += len(packed.content.names)
            for number in range(len(packed.content.names)):
                assert set(opened.documents.rows_of(packed, number)) == traced.get((unit, number), set())
        assert documents == opened.split.manifest["totals"]["documents"]


def test_a_source_that_gives_other_rows_is_noticed(tmp_path: Path, corpus: Path, tokenizer_folder: Path):
    source = tmp_path / "a.txt"
    source.write_bytes(b"a b c d e f g h\n" * 100)
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", "--max_length", "48"))
    [split] = open_dataset(str(tmp_path / "out"))
    source.write_bytes(b"abcdefghijklmno\n" * 100)  # as many bytes
    with pytest.raises(NotTraced, match="it now gives other rows"):
        OpenSplit(split).documents.unit(0)
