"""Exports: PyTorch's names, shapes and layouts, read with NumPy; the model card; the choice of checkpoint.

tests/tpu_trainer_export loads exports of every model type in PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from transformers import AutoTokenizer, TFAutoModelForCausalLM

from tests.tpu_trainer.model_types import small_config
from tests.tpu_trainer.numpy_models import gpt2_logits, roberta_logits
from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import GPT2, ROBERTA, network_of, run_of
from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import export_checkpoint, trim_vocabulary, write_network
from tpu_trainer.exports.initial_weights import load_weights
from tpu_trainer.network import initial_values
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError
from tpu_trainer.verbs.export import chosen_step


@pytest.fixture
def run(tokenizer_folder: Path, vocabulary: Vocabulary, tmp_path: Path) -> RunFolder:
    return run_of(tmp_path / "run", tokenizer_folder, vocabulary)


def test_gpt2s_file_gives_its_logits_in_numpy(vocabulary: Vocabulary, tmp_path: Path) -> None:
    network = trim_vocabulary(network_of("gpt2", GPT2, vocabulary), vocabulary, "clm")
    write_network(network, tmp_path)
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
    ids = np.random.default_rng(1).integers(5, 50, MAX_LENGTH)
    np.testing.assert_allclose(
        gpt2_logits(weights, ids, heads=2, layers=2, epsilon=network.config.layer_norm_epsilon),
        network(input_ids=ids[None].astype(np.int32)).logits.numpy()[0],
        rtol=1e-4,
        atol=1e-5,
    )
    loaded = TFAutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=False)
    for weight, loaded_weight in zip(network.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), loaded_weight.numpy())


def test_robertas_file_gives_its_logits_in_numpy(vocabulary: Vocabulary, tmp_path: Path) -> None:
    network = network_of("roberta", ROBERTA, vocabulary)
    trimmed = trim_vocabulary(network, vocabulary)
    write_network(trimmed, tmp_path)
    ids = np.random.default_rng(1).integers(5, 50, MAX_LENGTH)
    epsilon = network.config.layer_norm_eps
    actual = roberta_logits(
        load_file(tmp_path / "model.safetensors"), ids, heads=2, layers=2, pad_id=1, epsilon=epsilon
    )
    expected = network(input_ids=ids[None].astype(np.int32)).logits.numpy()[0, :, :50]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("other_form", ["tf_model.h5", "model.safetensors"])
def test_training_continues_from_a_ctrl_whose_vocabulary_is_not_padded(
    vocabulary: Vocabulary, tmp_path: Path, other_form: str
) -> None:
    network = network_of("ctrl", small_config("ctrl"), vocabulary)
    # PyTorch's output bias is a vector, TensorFlow's has the shape [1, vocabulary].
    (bias,) = network.get_bias().values()
    bias.assign(np.arange(vocabulary.padded_size, dtype=np.float32)[None])
    write_network(trim_vocabulary(network, vocabulary, "clm"), tmp_path)
    (tmp_path / other_form).unlink()
    loaded = network_of("ctrl", small_config("ctrl"), vocabulary)
    load_weights(loaded, str(tmp_path), vocabulary)
    for weight, loaded_weight in zip(network.weights, loaded.weights, strict=True):
        unpadded = tuple(slice(vocabulary.size if n == vocabulary.padded_size else n) for n in weight.shape)
        np.testing.assert_array_equal(
            weight.numpy()[unpadded], loaded_weight.numpy()[unpadded], err_msg=weight.name
        )


def test_postponed_weights_are_those_of_the_file(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_values, "_LEAST_ELEMENTS", 2)
    network = network_of("gpt2", small_config("gpt2"), vocabulary)
    write_network(trim_vocabulary(network, vocabulary, "clm"), tmp_path)
    loaded, initial = network_of("gpt2", small_config("gpt2"), vocabulary), InitialValues()
    with initial.postponed():
        postponed = LanguageModel.create(
            ModelConfig(type="gpt2", config=small_config("gpt2")),
            objective="clm",
            vocabulary=vocabulary,
            max_length=MAX_LENGTH,
            seed=3,
            initial=initial,
        ).network
    load_weights(loaded, str(tmp_path), vocabulary)
    load_weights(postponed, str(tmp_path), vocabulary, initial)
    for weight, postponed_weight in zip(loaded.weights, postponed.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), initial.value(postponed_weight), err_msg=weight.name)
    assert not postponed.weights[0].numpy().any()  # the embeddings


def test_a_width_equal_to_the_padded_vocabulary_is_not_cut(vocabulary: Vocabulary) -> None:
    network = network_of("roberta", ROBERTA | {"hidden_size": 128}, vocabulary)
    trimmed = trim_vocabulary(network, vocabulary)
    for trimmed_weight, weight in zip(trimmed.weights, network.weights, strict=True):
        np.testing.assert_array_equal(trimmed_weight.numpy(), weight.numpy()[: trimmed_weight.shape[0]])
    assert trimmed.get_input_embeddings().weight.shape == (50, 128)


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
        "tf_model.h5",
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
