"""The peer: datatrove's NGramsDecontFilter. Prints, as JSON, the CPU seconds and the decision about each document.

Its indexer needs lighteval even for benchmarks from files, so the index is made of the same functions here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.utils.hashing import create_hash_func
from datatrove.utils.text import ngrams, simplify_text
from datatrove.utils.typeshelper import Languages
from datatrove.utils.word_tokenizers import load_word_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, type=Path, help="jsonl of documents")
    parser.add_argument("--benchmark", required=True, type=Path, help="jsonl of items")
    parser.add_argument("--ngram", type=int, default=13)
    args = parser.parse_args()
    config = NGramsDecontConfig(n_grams=args.ngram)
    tokenizer, hash_of = load_word_tokenizer(Languages.english), create_hash_func(config.hash_config)
    hashes = set()
    for line in args.benchmark.read_text().splitlines():
        words = tokenizer.word_tokenize(simplify_text(json.loads(line)["text"], config.norm_config))
        hashes |= {hash_of(" ".join(ngram)) for ngram in ngrams(words, args.ngram)}
    documents = [
        Document(text=json.loads(line)["text"], id=str(number))
        for number, line in enumerate(args.input.read_text().splitlines())
    ]
    with tempfile.TemporaryDirectory() as folder:
        np.array(sorted(hashes), config.hash_config.np_descr).tofile(Path(folder, "items.index.hashes"))
        step = NGramsDecontFilter(folder, config)
        step.load_index_hashes()
        began = time.process_time()
        removed = [step.filter(document) is not True for document in documents]
        seconds = time.process_time() - began
    print(json.dumps({"seconds": seconds, "removed": removed}))


if __name__ == "__main__":
    main()
