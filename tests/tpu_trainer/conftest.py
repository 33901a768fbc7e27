"""Shared fixtures: a small dataset and its tokenizer."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Compiles ten times faster; the programs are tiny.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import tensorflow as tf
from tensorflow.python.framework import ops
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.google_cloud.gcs import Gcs
from tests.google_cloud.loopback import Loopback
from tests.tpu_trainer import launches
from tests.tpu_trainer.tiny import SPECIAL_TOKENS, WORDS, sequences, write_split
from tokenmill_reader.console.logs import log_to_stderr
from tpu_trainer.data.vocabulary import Vocabulary

log_to_stderr("tpu_trainer")  # as the command does; some tests call a verb's function

# Two devices, to test independence of their number. Must be set before TensorFlow uses a device.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def release_memory() -> None:
    """Frees the graphs that were traced so far.

    TensorFlow's gradient registry keeps every graph with a custom gradient, and its model, until the process ends.
    XLA's programs are never freed, so the Makefile runs each part of the suite in new processes.
    """
    registry = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient")]:
        del registry[name]
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(scope="module", autouse=True)
def released_memory() -> Iterator[None]:
    """Frees the graphs of each module's tests."""
    yield
    release_memory()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """The vocabulary of `tokenizer_folder`: 50 ids, the first five special."""
    return Vocabulary(size=50, special_ids=(0, 1, 2, 3, 4), pad_id=1, mask_id=4, bos_id=0, eos_id=2)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose tokens are the words w0 to w44."""
    folder = tmp_path_factory.mktemp("dataset") / "tokenizer"
    ids = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def dataset(tokenizer_folder: Path) -> Path:
    """A dataset folder: train (300 rows, the last half padding), validation (67 rows), tokenizer."""
    folder = tokenizer_folder.parent
    for name, count, seed in (("train", 300, 1), ("validation", 67, 2)):
        rows = sequences(count, seed)
        mask = np.ones_like(rows)
        rows[-1, 8:], mask[-1, 8:] = 1, 0
        write_split(folder / name, rows, attention_mask=mask, tokenizer=tokenizer_folder)
    return folder


@pytest.fixture
def run_verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `tpu_trainer <arguments>` in this process; returns the exit status."""

    def run(*arguments: Any) -> int:
        from tpu_trainer import __main__

        monkeypatch.setattr("sys.argv", ["tpu_trainer", *map(str, arguments)])
        return __main__.main()

    return run


@pytest.fixture
def gcs() -> Iterator[Gcs]:
    """A stand-in for Cloud Storage with one bucket."""
    with Gcs("bucket") as stand_in:
        yield stand_in


@pytest.fixture
def host_exit(gcs: Gcs) -> Callable[..., Callable[[dict[str, str]], None]]:
    """Makes a host report the exit of its container."""
    return partial(launches.host_exit, gcs)


@pytest.fixture
def train(gcs: Gcs, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Launches against a stand-in; returns the lines of stderr."""

    def run(
        stand_in: Loopback, *options: str, sleep: Callable[[float], Any] = lambda seconds: None
    ) -> list[str]:
        with stand_in:
            launches.run_launch(stand_in, gcs, *options, sleep=sleep)
        return capsys.readouterr().err.splitlines()

    return run
