"""A quality classifier for `--filter` and `annotate --measure`, trained on good and bad texts.

    python demo/quality.py good.txt bad.txt     (a text per line; writes demo/quality.joblib)
    PYTHONPATH=demo tokenmill annotate --input 'web/*.jsonl' --measure quality:good --output attributes
    PYTHONPATH=demo tokenmill prepare --input 'web/*.jsonl' --tokenizer tokenizer --filter quality:good --output clean

Needs scikit-learn. The features are hashes of words and of pairs of words, so the model needs no vocabulary.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline

FILES = ("quality.joblib",)  # part of the dataset's fingerprint; paths relative to this folder
MODEL = Path(__file__).with_name(FILES[0])
MIN_PROBABILITY = 0.5

_PASSAGE = re.compile(r"\S+(?:\s+\S+){0,49}")  # of up to 50 words


@cache
def load_model() -> Pipeline:
    """Returns the model, which each worker loads once."""
    return joblib.load(MODEL)


def good(texts: list[str], columns: dict[str, list]) -> dict[str, Sequence[Any]]:
    """Keeps texts that are probably good."""
    scores = load_model().predict_proba(texts)[:, 1]
    return {"keep": scores >= MIN_PROBABILITY, "value": scores, "quality": scores}


def train(good_texts: Sequence[str], bad_texts: Sequence[str]) -> Pipeline:
    """Trains on passages of the texts, so that the length of a text tells nothing."""
    passages = [
        [part for text in texts for part in _PASSAGE.findall(text)] for texts in (good_texts, bad_texts)
    ]
    labels = np.repeat([1, 0], [len(part) for part in passages])
    hashing = HashingVectorizer(n_features=1 << 18, ngram_range=(1, 2), alternate_sign=False)
    model = make_pipeline(hashing, SGDClassifier(loss="log_loss", class_weight="balanced", random_state=0))
    return model.fit([*passages[0], *passages[1]], labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("good", type=Path, help="a text file with a good text per line")
    parser.add_argument("bad", type=Path, help="a text file with a bad text per line")
    args = parser.parse_args()
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (args.good, args.bad)]
    joblib.dump(train(*texts), MODEL, compress=3)
    print(
        f"{MODEL}: {len(texts[0]):,} good and {len(texts[1]):,} bad texts, {MODEL.stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
