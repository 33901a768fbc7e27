"""The peer: the work of Megatron-LM's `tools/preprocess_data_fast.py`, without its imports of torch.

It writes the documents' tokens as an indexed dataset: no rows, no shuffle, no checksums. gigatoken encodes the whole
file at once; then the ids are written as they are, which is the least that gives Megatron's files.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import gigatoken
import numpy as np

_UINT16, _INT32 = 8, 4  # Megatron's codes of types


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help='a jsonl file with the key "text"')
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    tokenizer = gigatoken.Tokenizer.from_json(Path(args.tokenizer, "tokenizer.json").read_text())
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([args.input])).layout
    offsets = np.asarray(documents.offsets.data)
    code, dtype = (_UINT16, np.uint16) if tokenizer.vocab_size <= 65500 else (_INT32, np.int32)
    ids = np.asarray(documents.content.data)[offsets[0] : offsets[-1]].astype(dtype)
    folder = Path(args.output)
    folder.mkdir()
    ids.tofile(folder / "text_document.bin")
    with (folder / "text_document.idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(offsets) - 1, len(offsets)))
        np.diff(offsets).astype(np.int32).tofile(file)
        ((offsets[:-1] - offsets[0]) * ids.itemsize).astype(np.int64).tofile(file)
        np.arange(len(offsets), dtype=np.int64).tofile(file)


if __name__ == "__main__":
    main()
