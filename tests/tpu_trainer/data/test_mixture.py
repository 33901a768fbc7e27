"""Several datasets as one: the schedule, the stream, and what does not fit together."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tpu_trainer.tiny import sequences, write_manifest, write_split
from tpu_trainer.data.mixture import PERIOD, MixedOrder, Mixture, open_mixture, schedule
from tpu_trainer.support.errors import UsageError

WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> list[Path]:
    """Splits of 200, 90 and 41 rows."""
    root = tmp_path_factory.mktemp("mixture")
    return [
        write_split(root / name / "train", sequences(rows, seed), tokenizer=tokenizer_folder, shard_rows=20)
        for seed, (name, rows) in enumerate({"a": 200, "b": 90, "c": 41}.items())
    ]


def mixture(folders: list[Path], *weights: float | None) -> Mixture:
    return open_mixture({str(folder): weight for folder, weight in zip(folders, weights, strict=False)})


@given(
    weights=WEIGHTS, seed=st.integers(0, 2**32 - 1), start=st.integers(0, PERIOD), length=st.integers(1, 4000)
)
def test_any_stretch_of_the_schedule_holds_every_share(
    weights: list[float], seed: int, start: int, length: int
) -> None:
    exact = np.array(weights) / sum(weights) * PERIOD
    shares = np.floor(exact).astype(int)
    shares[0] += PERIOD - shares.sum()
    choices = schedule(shares.tolist(), seed=seed)
    assert np.bincount(choices, minlength=len(weights)).tolist() == shares.tolist()
    stretch = np.take(choices, np.arange(start, start + length), mode="wrap")
    found = np.bincount(stretch, minlength=len(weights))
    assert np.abs(found - shares * length / PERIOD).max() <= len(weights)


def test_shares_follow_weights_or_numbers_of_rows(folders: list[Path]) -> None:
    assert mixture(folders, 3, 1).shares == (7500, 2500)
    assert mixture(folders, 1, 1, 1).shares in {(3334, 3333, 3333), (3333, 3334, 3333), (3333, 3333, 3334)}
    # Rows come equally often: 200 of 331, 90 of 331, 41 of 331.
    assert mixture(folders, None, None, None).shares == (6042, 2719, 1239)


@given(position=st.integers(0, 30_000), seed=st.integers(0, 2**32 - 1))
def test_resuming_a_mixture_is_skipping(folders: list[Path], position: int, seed: int) -> None:
    order = MixedOrder(mixture(folders, 5, 2, 1), seed=seed, window_shards=2)
    near = max(position - 50, 0)
    expected = list(itertools.islice(order.rows(near), 150))[position - near :]
    assert list(itertools.islice(order.rows(position), len(expected))) == expected


def test_a_dataset_is_read_in_whole_epochs_whatever_its_weight(folders: list[Path]) -> None:
    order = MixedOrder(mixture(folders, 1, 4), seed=1, window_shards=3)
    rows = [row for dataset, row in itertools.islice(order.rows(), 1000) if dataset == 1]
    for epoch in range(len(rows) // 90):
        assert sorted(rows[epoch * 90 : (epoch + 1) * 90]) == list(range(90))


def test_datasets_of_equal_shape_are_not_read_in_step(
    folders: list[Path], tmp_path: Path, tokenizer_folder: Path
) -> None:
    twin = write_split(tmp_path / "twin", sequences(200, 5), tokenizer=tokenizer_folder, shard_rows=20)
    rows = list(
        itertools.islice(MixedOrder(mixture([folders[0], twin], 1, 1), seed=1, window_shards=3).rows(), 400)
    )
    first, second = ([row for dataset, row in rows if dataset == index] for index in (0, 1))
    assert first != second


def test_hosts_share_a_mixture(folders: list[Path]) -> None:
    data = mixture(folders, None, None)
    seen = [
        pair
        for host in range(2)
        for pair in itertools.islice(
            MixedOrder(data, seed=4, window_shards=2, host=host, hosts=2).rows(), data.num_rows // 2
        )
    ]
    # As every row comes equally often, an epoch of all is an epoch of each, but for the schedule's evenness.
    assert len(set(seen)) >= 0.97 * len(seen)
    with pytest.raises(UsageError, match=r"b/train: 5 shards with rows for 6 hosts"):
        MixedOrder(data, seed=4, window_shards=2, hosts=6)


def test_statistics_are_those_of_the_rows_that_are_read(folders: list[Path]) -> None:
    def counts(folder: Path) -> np.ndarray:
        return np.array(json.loads((folder / "statistics.json").read_text())["token_counts"], float)

    assert mixture(folders, 1).token_counts().tolist() == counts(folders[0]).tolist()
    found = mixture(folders, 1, 3).token_counts()
    expected = 0.25 * counts(folders[0]) / 200 + 0.75 * counts(folders[1]) / 90
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum())


def test_the_fingerprint_tells_weights_apart(folders: list[Path]) -> None:
    alone = mixture(folders, 1).fingerprint
    assert alone == mixture(folders, None).fingerprint == mixture(folders, 1).splits[0].fingerprint
    found = {
        alone,
        *(mixture(folders, *weights).fingerprint for weights in ((1, 1), (1, 2), (2, 4), (1, 1, 1))),
    }
    assert len(found) == 4


def test_datasets_that_do_not_fit_together(
    folders: list[Path], tmp_path: Path, tokenizer_folder: Path
) -> None:
    shorter = write_split(tmp_path / "shorter", sequences(40, 3)[:, :8], tokenizer=tokenizer_folder)
    with pytest.raises(UsageError, match=r"shorter: rows of 8 tokens, but .*a/train has rows of 16"):
        mixture([folders[0], shorter], 1, 1)
    rows = sequences(40, 3)
    masked = write_split(
        tmp_path / "masked", rows, tokenizer=tokenizer_folder, attention_mask=np.ones_like(rows)
    )
    with pytest.raises(
        UsageError, match=r"masked: records have attention_mask, input_ids, but .* have input_ids;"
    ):
        mixture([folders[0], masked], 1, 1)
    manifest = json.loads((shorter / "manifest.json").read_text())
    other = write_split(tmp_path / "other", rows, tokenizer=tokenizer_folder)
    write_manifest(
        other,
        json.loads((other / "manifest.json").read_text())
        | {"tokenizer": manifest["tokenizer"] | {"sha256": "0" * 64}},
    )
    with pytest.raises(UsageError, match=r"other: prepared with another tokenizer than"):
        mixture([folders[0], other], 1, 1)
    with pytest.raises(UsageError, match=r"b/train has weight 1 of 50001, less than one row in 10000"):
        mixture(folders, 50_000, 1)
