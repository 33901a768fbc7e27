"""The adapters with the real libraries, in an environment with datasets, fsspec, grain, jax, torch and torchdata.

PYTHONPATH=reader:. python -m pytest tests/tokenmill_reader_adapters
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from tests.tokenmill_reader.written import random_rows, write_split
from tokenmill_reader import Dataset, Order

IDS = random_rows(200, 16, largest=500)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 rows in 20 shards, at OUT/train."""
    return write_split(
        tmp_path_factory.mktemp("adapters") / "OUT" / "train",
        {"attention_mask": np.ones_like(IDS), "input_ids": IDS},
        vocab_size=512,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorch_batches_continue_from_their_state(folder: Path, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from tokenmill_reader.adapters.pytorch import Batches

    dataset = Dataset.open(folder)
    order = Order(dataset, batch_size=8, window=3)

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(Batches(dataset, order), batch_size=None, num_workers=workers)

    first = loader()
    batches = iter(first)
    for step in range(11):
        batch = next(batches)
        assert batch["row"].tolist() == order.rows(step).tolist()
        np.testing.assert_array_equal(batch["input_ids"].numpy(), IDS[batch["row"]])
    second = loader()
    second.load_state_dict(first.state_dict())
    for step, batch in zip(range(11, 40), second, strict=False):
        assert batch["row"].tolist() == order.rows(step).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorch_samples_rows(folder: Path, workers: int) -> None:
    from torch.utils.data import DataLoader

    from tokenmill_reader.adapters.pytorch import MapDataset

    loader = DataLoader(MapDataset(Dataset.open(folder)), batch_size=32, shuffle=True, num_workers=workers)
    rows = np.concatenate([batch["input_ids"].numpy() for batch in loader])
    assert sorted(rows.tolist()) == sorted(IDS.tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_grain_shuffles_and_continues(folder: Path, workers: int) -> None:
    import grain.python as grain
    from absl import flags

    from tokenmill_reader.adapters.grain import BatchSource, RowSource

    flags.FLAGS.mark_as_parsed()  # Grain's workers read its flags
    dataset = Dataset.open(folder)
    whole = grain.MapDataset.source(RowSource(dataset)).seed(1).shuffle().batch(20).to_iter_dataset()
    if workers:
        whole = whole.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    batches = iter(whole)
    found = [next(batches)["input_ids"] for _ in range(4)]
    state = batches.get_state()
    found += [batch["input_ids"] for batch in batches]
    assert sorted(np.concatenate(found).tolist()) == sorted(IDS.tolist())
    continued = iter(whole)
    continued.set_state(state)
    np.testing.assert_array_equal(next(continued)["input_ids"], found[4])
    order = Order(dataset, batch_size=8)
    for step, batch in enumerate(grain.MapDataset.source(BatchSource(dataset, order, steps=5))):
        assert batch["row"].tolist() == order.rows(step).tolist()


def test_jax_arrays(folder: Path) -> None:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from tokenmill_reader.adapters.jax import global_batches

    dataset = Dataset.open(folder)
    order = Order(dataset, batch_size=8)
    sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))
    for step, batch in enumerate(itertools.islice(global_batches(dataset, order, sharding, step=3), 4), 3):
        assert batch["input_ids"].dtype == np.int32
        np.testing.assert_array_equal(batch["input_ids"], IDS[order.rows(step)])


def test_hugging_face_dataset(folder: Path, tmp_path: Path) -> None:
    from tokenmill_reader.adapters.huggingface import to_hf

    dataset = to_hf(Dataset.open(folder), tmp_path / "rows.arrow").with_format("numpy")
    assert sorted(dataset.column_names) == ["attention_mask", "input_ids"]
    np.testing.assert_array_equal(dataset[:]["input_ids"], IDS)
    np.testing.assert_array_equal(dataset[[5, 190]]["input_ids"], IDS[[5, 190]])
    assert len(dataset.cache_files) == 1


@pytest.mark.parametrize(
    "heading",
    [
        "Using datasets in other programs",
        "The trainer's order",
        "PyTorch",
        "JAX",
        "Grain",
        "Hugging Face datasets",
    ],
)
def test_the_documented_examples_run(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[1])
    page = (ROOT / "docs" / "using-datasets.md").read_text(encoding="utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    exec(code.replace("    ...\n", "    break\n"), {"__name__": "__main__"})
