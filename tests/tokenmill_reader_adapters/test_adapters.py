"""The adapters with the real libraries, and the examples in the docs: `make test-adapters`."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np
import pytest

from tests.tokenmill_reader.written import random_rows, write_split
from tokenmill_reader import Dataset, Order

IDS = random_rows(200, 16, largest=500)
T = TypeVar("T")


class AsyncDataset(ABC, Generic[T]):
    """The abstract methods of Levanter's class, because no release on PyPI has it."""

    @abstractmethod
    async def async_len(self) -> int: ...

    @abstractmethod
    async def final_length_is_known(self) -> bool: ...

    @abstractmethod
    def is_finite(self) -> bool: ...

    @abstractmethod
    async def current_len(self) -> int | None: ...

    @abstractmethod
    async def get_batch(self, indices: list[int]) -> list[T]: ...


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 rows in 20 shards, at OUT/train."""
    return write_split(
        tmp_path_factory.mktemp("adapters") / "OUT" / "train",
        {
            "attention_mask": np.ones_like(IDS),
            "input_ids": IDS,
            "position_ids": np.tile(np.r_[:6, :10], (len(IDS), 1)),
            "segment_ids": np.tile(np.repeat([1, 2], [6, 10]), (len(IDS), 1)),
        },
        vocab_size=512,
    )


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of conversations, most with padding, at OUT/train."""
    random = np.random.default_rng(0)
    segments = np.zeros((60, 16), np.int64)
    for row, lengths in enumerate(
        itertools.islice(itertools.cycle(([6, 10], [5, 4, 4], [9])), len(segments))
    ):
        segments[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    is_first = np.diff(segments, axis=1, prepend=0) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(16), 0), axis=1)
    filled = segments > 0
    return write_split(
        tmp_path_factory.mktemp("conversations") / "OUT" / "train",
        {
            "attention_mask": filled,
            "input_ids": np.where(filled, random_rows(60, 16, seed=1, largest=500), 0),
            "loss_mask": filled & ~is_first & (random.random(segments.shape) < 0.5),
            "position_ids": np.where(filled, np.arange(16) - starts, 0),
            "segment_ids": segments,
        },
        vocab_size=512,
    )


@pytest.fixture(scope="module")
def arrayrecord(folder: Path) -> Path:
    """The same rows in one shard of `--output_format arrayrecord`, also in OUT/train."""
    path = folder / "train-00000-200.array_record"
    code = f"""
import sys
import numpy as np
from beam_pipeline.formats.arrayrecord import ArrayRecord
from beam_pipeline.formats.base import RowForm
from beam_pipeline.rows.blocks import RowBlock

ids = np.frombuffer(sys.stdin.buffer.read(), np.uint16).reshape({IDS.shape})
form = RowForm(max_length={IDS.shape[1]}, vocab_size=512, features=("attention_mask", "input_ids"))
block = RowBlock(ids, np.full(len(ids), ids.shape[1], np.uint32))
sys.stdout.buffer.writelines(ArrayRecord(form).encode(block))
"""
    pipeline = [os.environ["PIPELINE_PYTHON"], "-c", code]
    path.write_bytes(
        subprocess.run(
            pipeline, input=IDS.astype(np.uint16).tobytes(), stdout=subprocess.PIPE, check=True
        ).stdout
    )
    return path


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
    loader = grain.MapDataset.source(RowSource(dataset)).seed(1).shuffle().batch(20).to_iter_dataset()
    if workers:
        loader = loader.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    batches = iter(loader)
    read_batches = [next(batches)["input_ids"] for _ in range(4)]
    state = batches.get_state()
    read_batches += [batch["input_ids"] for batch in batches]
    assert sorted(np.concatenate(read_batches).tolist()) == sorted(IDS.tolist())
    continued_batches = iter(loader)
    continued_batches.set_state(state)
    np.testing.assert_array_equal(next(continued_batches)["input_ids"], read_batches[4])
    order = Order(dataset, batch_size=8)
    for step, batch in enumerate(grain.MapDataset.source(BatchSource(dataset, order, steps=5))):
        assert batch["row"].tolist() == order.rows(step).tolist()


def test_grain_reads_array_records_in_any_order(folder: Path, arrayrecord: Path) -> None:
    import grain.python as grain

    from tokenmill_reader.examples import parse_example

    source = grain.ArrayRecordDataSource([str(arrayrecord)])
    shuffled = grain.MapDataset.source(source).seed(1).shuffle()
    rows = [parse_example(shuffled[number])["input_ids"].tolist() for number in range(len(IDS))]
    assert rows != IDS.tolist() and sorted(rows) == sorted(IDS.tolist())


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
    assert sorted(dataset.column_names) == ["attention_mask", "input_ids", "position_ids", "segment_ids"]
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
        "MaxText",
        "ArrayRecord",
        "Levanter",
        "Megatron-LM",
        "Hugging Face datasets",
    ],
)
@pytest.mark.usefixtures("arrayrecord")
def test_the_documented_examples_run(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = run_example(heading, folder, monkeypatch)
    if heading in CHECKS:
        CHECKS[heading](namespace)


@pytest.mark.parametrize("heading", ["PyTorch", "MaxText", "Megatron-LM", "TRL"])
def test_the_documented_examples_train_on_the_targets(
    heading: str, conversations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = TRAINED[heading](run_example(heading, conversations, monkeypatch))
    rows = Dataset.open(conversations)[:]
    targets = {
        ids: (
            [
                place - 1
                for place in range(1, 16)
                if is_target[place] and segments[place - 1] == segments[place]
            ],
            [ids[place] for place in range(16) if is_target[place]],
        )
        for ids, is_target, segments in zip(
            map(tuple, rows["input_ids"].tolist()), rows["loss_mask"], rows["segment_ids"], strict=True
        )
    }
    assert trained
    for ids, *places_and_targets in trained:
        assert tuple(places_and_targets) == targets[tuple(ids)]


def run_example(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Returns the names that the first example below this heading defines."""
    monkeypatch.setitem(sys.modules, "levanter", ModuleType("levanter"))
    monkeypatch.setitem(sys.modules, "levanter.data", ModuleType("levanter.data"))
    sys.modules["levanter.data"].AsyncDataset = AsyncDataset
    monkeypatch.chdir(folder.parents[1])
    page = (ROOT / "docs" / "using-datasets.md").read_text(encoding="utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    namespace = {"__name__": "__main__"}
    exec(code.replace("    ...\n", "    break\n"), namespace)
    return namespace


def check_pytorch(namespace: dict) -> None:
    """The loop has learned something: it predicts better than by chance."""
    assert namespace["loss"].item() < np.log(512) - 0.3


def check_maxtext(namespace: dict) -> None:
    batch = namespace["batch"]
    assert {values.shape for values in batch.values()} == {(16, 16)}
    np.testing.assert_array_equal(batch["targets"][:, :-1], batch["inputs"][:, 1:])
    is_last = (
        np.append(batch["inputs_segmentation"][:, 1:], np.zeros((16, 1)), axis=1)
        != batch["inputs_segmentation"]
    )
    np.testing.assert_array_equal(batch["targets_segmentation"] == 0, is_last)


def check_levanter(namespace: dict) -> None:
    rows = namespace["rows"]
    assert asyncio.run(rows.async_len()) == len(IDS) and rows.is_finite()
    np.testing.assert_array_equal(asyncio.run(rows.get_batch([7, 3])), IDS[[7, 3]])


def check_megatron(namespace: dict) -> None:
    train, item = namespace["train"], namespace["train"][3]
    assert len(train) == len(IDS)
    np.testing.assert_array_equal(item["labels"][:-1], item["tokens"][1:])
    assert item["loss_mask"].tolist() == [1.0] * 15 + [0.0]


def check_arrayrecord(namespace: dict) -> None:
    assert len(namespace["source"]) == len(IDS) and len(namespace["batch"]) == 16


CHECKS = {
    "ArrayRecord": check_arrayrecord,
    "PyTorch": check_pytorch,
    "MaxText": check_maxtext,
    "Levanter": check_levanter,
    "Megatron-LM": check_megatron,
}


Trained = list[tuple[list[int], list[int], list[int]]]  # the ids of a row, places before targets, the targets


def trained_by_pytorch(namespace: dict) -> Trained:
    last_step = namespace["step"] - 1
    ids = namespace["dataset"][namespace["order"].rows(last_step)]["input_ids"]
    targets = namespace["targets"].numpy()
    return [
        (row.tolist(), *places_of(wanted != -100, wanted)) for row, wanted in zip(ids, targets, strict=True)
    ]


def trained_by_maxtext(namespace: dict) -> Trained:
    batch = namespace["batch"]
    return [
        (row.tolist(), *places_of(segments > 0, targets))
        for row, segments, targets in zip(
            batch["inputs"], batch["targets_segmentation"], batch["targets"], strict=True
        )
    ]


def trained_by_megatron(namespace: dict) -> Trained:
    return [
        (item["tokens"].tolist(), *places_of(item["loss_mask"].numpy() > 0, item["labels"].numpy()))
        for item in namespace["train"]
    ]


def trained_by_trl(namespace: dict) -> Trained:
    """As in TRL: positions follow from the lengths, and a label at position 0 is without effect."""
    trained = []
    for row in namespace["train"]:
        ids, labels = np.array(row["input_ids"]), np.array(row["labels"])
        positions = np.concatenate([np.arange(length) for length in row["seq_lengths"]])
        assert len(ids) == len(labels) == len(positions)
        labels[positions == 0] = -100
        padded = np.pad(ids, (0, 16 - len(ids)))
        trained.append((padded.tolist(), *places_of(labels[1:] != -100, labels[1:])))
    assert len(trained) == 60
    return trained


def places_of(is_trained: np.ndarray, targets: np.ndarray) -> tuple[list[int], list[int]]:
    return np.flatnonzero(is_trained).tolist(), targets[is_trained].tolist()


TRAINED = {
    "PyTorch": trained_by_pytorch,
    "MaxText": trained_by_maxtext,
    "Megatron-LM": trained_by_megatron,
    "TRL": trained_by_trl,
}
