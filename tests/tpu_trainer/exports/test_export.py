"""Exports: PyTorch's names, shapes and layouts, read with NumPy; the model card; the choice of checkpoint.

tests/tpu_trainer_export loads exports of every model type in PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from safetensors.numpy import load_file
from transformers import CONFIG_MAPPING, AutoTokenizer

from tests.tpu_trainer.numpy_models import gpt2_logits, roberta_logits
from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import GPT2, configuration_of, export_of, run_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import export_checkpoint
from tpu_trainer.exports.config_file import config_text
from tpu_trainer.exports.weight_files import WeightFiles, write_weights
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.chosen_step import chosen_step
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def run(tokenizer_folder: Path, vocabulary: Vocabulary, tmp_path: Path) -> RunFolder:
    return run_of(tmp_path / "run", tokenizer_folder, vocabulary)


IDS = np.random.default_rng(1).integers(5, 50, MAX_LENGTH).astype(np.int32)


def logits_of(model: LanguageModel) -> np.ndarray:
    return model.logits_at(Inputs(tf.constant(IDS[None]))).numpy()[0, :, :50]


def test_gpt2s_file_gives_its_logits_in_numpy(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = export_of("gpt2", vocabulary, tmp_path, n_embd=16)
    weights = load_file(tmp_path / "model.safetensors")
    block = {
        "ln_1.weight": (16,),
        "ln_1.bias": (16,),
        "attn.c_attn.weight": (16, 48),  # Conv1D's: [in, out]
        "attn.c_attn.bias": (48,),
        "attn.c_proj.weight": (16, 16),
        "attn.c_proj.bias": (16,),
        "ln_2.weight": (16,),
        "ln_2.bias": (16,),
        "mlp.c_fc.weight": (16, 64),
        "mlp.c_fc.bias": (64,),
        "mlp.c_proj.weight": (64, 16),
        "mlp.c_proj.bias": (16,),
    }
    expected = {
        "transformer.wte.weight": (50, 16),
        "transformer.wpe.weight": (MAX_LENGTH, 16),
        "transformer.ln_f.weight": (16,),
        "transformer.ln_f.bias": (16,),
    } | {f"transformer.h.{layer}.{name}": shape for layer in (0, 1) for name, shape in block.items()}
    assert {name: array.shape for name, array in weights.items()} == expected
    actual = gpt2_logits(weights, IDS, heads=2, layers=2, epsilon=1e-5)
    np.testing.assert_allclose(actual, logits_of(model), rtol=1e-4, atol=1e-5)


def test_robertas_file_gives_its_logits_in_numpy(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = export_of("roberta", vocabulary, tmp_path, layer_norm_eps=1e-5)
    weights = load_file(tmp_path / "model.safetensors")
    actual = roberta_logits(weights, IDS, heads=2, layers=2, pad_id=1, epsilon=1e-5)
    np.testing.assert_allclose(actual, logits_of(model), rtol=1e-4, atol=1e-5)


def test_large_models_are_written_in_parts_with_an_index(tmp_path: Path) -> None:
    shapes = {"a": (30, 2), "b": (7,), "c": (60, 2), "d": (2, 2)}  # c is larger than a file
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    write_weights(tmp_path, iter(values.items()), shapes, max_bytes=300)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * (60 + 7 + 120 + 4)
    assert len(set(index["weight_map"].values())) == 2
    files = WeightFiles(tmp_path, "folder")
    for name, value in values.items():
        np.testing.assert_array_equal(files.read(name), value)
        np.testing.assert_array_equal(load_file(tmp_path / index["weight_map"][name])[name], value)


def test_a_width_equal_to_the_padded_vocabulary_is_not_cut(vocabulary: Vocabulary, tmp_path: Path) -> None:
    export_of("roberta", vocabulary, tmp_path, hidden_size=128)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["roberta.embeddings.word_embeddings.weight"].shape == (50, 128)
    assert weights["lm_head.dense.weight"].shape == (128, 128)


def test_what_transformers_4_reads_of_rotations_says_the_same(vocabulary: Vocabulary) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    rope = scaling | {"rope_theta": 500.0}
    written = json.loads(
        config_text(configuration_of("llama", vocabulary, rope_parameters=rope), vocabulary=50)
    )
    assert (written["rope_theta"], written["rope_scaling"], written["rope_parameters"]) == (
        500,
        scaling,
        rope,
    )
    assert CONFIG_MAPPING["llama"](**written).rope_parameters == rope
    assert written["tie_word_embeddings"] is False  # 4 and 5 have different defaults for some types
    assert (written["architectures"], written["vocab_size"]) == (["LlamaForCausalLM"], 50)


def test_the_choice_of_checkpoint(run: RunFolder, tmp_path: Path) -> None:
    checkpoints = Checkpoints(run.checkpoints)
    steps = {choice: chosen_step(checkpoints, choice) for choice in ("latest", "best", "10")}
    assert steps == {"latest": 30, "best": 20, "10": 10}
    with pytest.raises(
        UsageError, match="--checkpoint is 11, but the run has checkpoints of the steps 10, 20, 30"
    ):
        chosen_step(checkpoints, "11")
    with pytest.raises(UsageError, match="no complete checkpoint"):
        chosen_step(Checkpoints(str(tmp_path / "none")), "latest")
    with pytest.raises(UsageError, match="--checkpoint is 'best', but no checkpoint"):
        chosen_step(Checkpoints(str(tmp_path / "none")), "best")


def test_an_export_is_the_same_bytes_every_time_and_has_a_card(run: RunFolder, tmp_path: Path) -> None:
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        export_checkpoint(run, 20, tmp_path / name)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("once", "again")
    )
    assert first == second
    assert first.keys() >= {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert len(AutoTokenizer.from_pretrained(tmp_path / "once")) == 50
    _, metadata, card = first["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(metadata)
    assert (metadata["library_name"], metadata["pipeline_tag"]) == ("transformers", "text-generation")
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "OUT/validation"
    assert {"type": "loss", "value": 1.5} in result["metrics"]
    assert "20 steps of 128 rows" in card
    assert "| OUT/train | training | 300 | 4,792 | 12 | a.txt and 1,200 more |" in card
    assert "| loss | 1.6000 | 1.5000 |" in card
    options = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert (options["objective"], options["model"]["config"]) == ("clm", GPT2)
    assert str(tmp_path) not in first["README.md"].decode()
