"""The datasets of a run as one: the rows' statistics, and datasets that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.tpu_trainer.tiny import sequences, write_split
from tokenmill_reader import Mixture
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import check_same_rows, open_mixture, token_counts
from tpu_trainer.support.errors import UsageError


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> list[Path]:
    """Splits of 200 and 90 rows."""
    root = tmp_path_factory.mktemp("mixture")
    return [
        write_split(root / name / "train", sequences(rows, seed), tokenizer=tokenizer_folder, shard_rows=20)
        for seed, (name, rows) in enumerate({"a": 200, "b": 90}.items())
    ]


def mixture(folders: list[Path], *weights: float | None) -> Mixture:
    return open_mixture({str(folder): weight for folder, weight in zip(folders, weights, strict=False)})


def test_statistics_are_those_of_the_rows_that_are_read(folders: list[Path]) -> None:
    def counts(folder: Path) -> np.ndarray:
        return np.array(json.loads((folder / "statistics.json").read_text())["token_counts"], float)

    assert token_counts(mixture(folders, 1)).tolist() == counts(folders[0]).tolist()
    actual = token_counts(mixture(folders, 1, 3))
    expected = 0.25 * counts(folders[0]) / 200 + 0.75 * counts(folders[1]) / 90
    np.testing.assert_allclose(actual / actual.sum(), expected / expected.sum())


def test_datasets_that_do_not_fit_together(
    folders: list[Path], tmp_path: Path, tokenizer_folder: Path
) -> None:
    shorter_rows = write_split(tmp_path / "shorter", sequences(40, 3)[:, :8], tokenizer=tokenizer_folder)
    with pytest.raises(UsageError, match=r"shorter: its max_length is 8, but that of .*a/train is 16"):
        mixture([folders[0], shorter_rows], 1, 1)
    with pytest.raises(UsageError, match=r"shorter: rows of 8 tokens, but .*a/train has rows of 16"):
        check_same_rows(open_split(str(folders[0])), open_split(str(shorter_rows)))
    with pytest.raises(UsageError, match=r"b/train: its weight is 1 of 50001, less than one row in 10000"):
        mixture(folders, 50_000, 1)
