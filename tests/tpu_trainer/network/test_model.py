"""The model: logits at selected positions, vocabulary, positions and configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from transformers import CONFIG_MAPPING

from tpu_trainer.config import ModelConfig
from tpu_trainer.data.token_counts import target_counts, unigram_entropy
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.exported import open_tokenizer
from tpu_trainer.exports.initial_weights import resolve_init_from
from tpu_trainer.network.config_values import heads_error, value_error
from tpu_trainer.network.hf_config import check_model, network_config
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.model_types import CONFIG_VALUES
from tpu_trainer.support.errors import UsageError

LENGTH = 12
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZES: dict[str, dict[str, Any]] = {
    "roberta": SMALL,
    "bert": SMALL,
    "camembert": SMALL,
    "electra": SMALL | {"embedding_size": 16},
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24},
}


def model_of(model_type: str, vocabulary: Vocabulary) -> LanguageModel:
    config = ModelConfig(type=model_type, config=SIZES[model_type])
    model = LanguageModel.create(config, vocabulary=vocabulary, max_length=LENGTH, seed=3)
    rng = np.random.default_rng(0)
    for variable in model.network.trainable_variables:  # biases start at 0, where a mistake would not show
        variable.assign_add(rng.normal(scale=0.1, size=variable.shape).astype(np.float32))
    return model


def rows(vocabulary: Vocabulary) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns four rows, the last two padded, and their attention mask."""
    ids = np.random.default_rng(1).integers(5, vocabulary.size, size=(4, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    for row, length in ((2, 9), (3, 4)):
        ids[row, length:], mask[row, length:] = vocabulary.pad_id, 0
    return tf.constant(ids), tf.constant(mask)


@pytest.mark.parametrize("model_type", sorted(SIZES))
def test_logits_at_positions_equal_those_of_the_whole_model(model_type: str, vocabulary: Vocabulary) -> None:
    model = model_of(model_type, vocabulary)
    ids, mask = rows(vocabulary)
    positions = np.array([[0, 11, 5], [3, 3, 1], [8, 0, 2], [3, 2, 1]], np.int32)
    logits_at_positions = model.logits_at(input_ids=ids, attention_mask=mask, positions=positions).numpy()
    all_logits = model.network(input_ids=ids, attention_mask=mask).logits.numpy()
    assert logits_at_positions.shape == (4, 3, 128)
    np.testing.assert_allclose(
        logits_at_positions[..., :50],
        np.take_along_axis(all_logits, positions[..., None], axis=1)[..., :50],
        rtol=1e-4,
        atol=1e-5,
    )


def test_ids_that_pad_the_vocabulary_are_never_predicted(vocabulary: Vocabulary) -> None:
    model = model_of("roberta", vocabulary)
    (bias,) = model.network.get_bias().values()
    bias.assign(np.arange(128, dtype=np.float32))  # which would make the last of them the likeliest
    ids, _ = rows(vocabulary)
    logits = model.logits_at(input_ids=ids, positions=np.zeros([4, 1], np.int32))
    probabilities = tf.nn.softmax(logits).numpy()
    assert probabilities[..., 50:].max() == 0
    np.testing.assert_allclose(probabilities[..., :50].sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("pad_id", [0, 1, 3])
def test_roberta_counts_positions_from_the_tokenizers_padding_id(vocabulary: Vocabulary, pad_id: int) -> None:
    # PyTorch's class does so; TensorFlow's always counts from 1.
    model = model_of("roberta", replace(vocabulary, pad_id=pad_id))
    ids, mask = rows(model.vocabulary)
    assert model.network.config.max_position_embeddings == LENGTH + pad_id + 1
    positions = tf.tile(tf.range(LENGTH)[None], [4, 1])
    features = {"input_ids": ids, "attention_mask": mask, "positions": positions}
    implied = model.logits_at(**features).numpy()
    is_token = mask.numpy() > 0
    explicit = model.logits_at(**features, position_ids=positions).numpy()
    np.testing.assert_allclose(implied[is_token], explicit[is_token], rtol=1e-4, atol=1e-5)
    restarted = model.logits_at(**features, position_ids=positions % 5).numpy()
    assert np.abs(implied[is_token] - restarted[is_token]).max() > 0.01


def test_weights_are_a_function_of_the_seed(vocabulary: Vocabulary) -> None:
    config = ModelConfig(type="roberta", config=SMALL)
    first, same_seed, other_seed = (
        LanguageModel.create(
            config, vocabulary=vocabulary, max_length=LENGTH, seed=seed
        ).network.get_weights()
        for seed in (1, 1, 2)
    )
    assert all((a == b).all() for a, b in zip(first, same_seed, strict=True))
    assert not all((a == b).all() for a, b in zip(first, other_seed, strict=True))


def test_the_output_bias_is_set_to_log_frequencies(vocabulary: Vocabulary) -> None:
    model = model_of("bert", vocabulary)
    counts = np.arange(50.0) * 100
    model.init_output_bias(target_counts(counts, vocabulary))
    (bias,) = model.network.get_bias().values()
    shares = np.exp(bias.numpy()[:50])
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(shares[5:], (counts[5:] + 1) / (counts[5:].sum() + 50), rtol=1e-5)
    assert shares[:5].max() < 1e-5  # special ids are never targets, however frequent


def test_unigram_entropy_leaves_out_special_tokens(vocabulary: Vocabulary) -> None:
    counts = np.zeros(50)
    counts[[0, 2]] = 1e6
    counts[10:18] = 7
    assert unigram_entropy(counts, vocabulary) == pytest.approx(np.log(8))


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("gpt2", {}, r"--model.type is 'gpt2': not a supported masked-LM model; .*roberta"),
        (
            "roberta",
            {"hidden_sise": 8},
            r"--model.config.hidden_sise: configurations of type 'roberta' have no such",
        ),
        ("roberta", {"vocab_size": 8}, r"--model.config.vocab_size: the tokenizer determines it"),
        (
            "bert",
            {"tie_word_embeddings": False},
            r"--model.config.tie_word_embeddings is False: bert in Tens",
        ),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            r"ignores it .* would differ from the trained one",
        ),
        (
            "bert",
            {"hidden_act": "relu2"},
            r"--model.config.hidden_act is 'relu2': must be one of gelu, gelu_10",
        ),
        ("deberta-v2", {"conv_kernel_size": 4}, r"--model.config.conv_kernel_size is 4: must be odd"),
        (
            "deberta-v2",
            {"conv_groups": 2},
            "--model.config.conv_groups: configurations of type .deberta-v2. have no",
        ),
        ("flaubert", {"layerdrop": 0.1}, r"--model.config.layerdrop is 0.1: flaubert in TensorFlow ignores"),
        (
            "roberta",
            {"max_position_embeddings": 13},
            r"is 13: rows of 12 tokens need 14 in a model of type 'roberta'",
        ),
    ],
)
def test_unsupported_configurations_are_rejected(
    vocabulary: Vocabulary, model_type: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        network_config(
            ModelConfig(type=model_type, config=values),
            objective="mlm",
            vocabulary=vocabulary,
            max_length=LENGTH,
        )


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("opt", {"enable_bias": False}),
        ("mistral", {"sliding_window": LENGTH - 1}),
    ],
)
def test_values_that_only_pytorch_respects_are_rejected_also_in_init_from(
    vocabulary: Vocabulary, tmp_path: Path, model_type: str, values: dict[str, Any]
) -> None:
    options = {"objective": "clm", "vocabulary": vocabulary, "max_length": LENGTH}
    (name,) = values
    with pytest.raises(
        UsageError, match=rf"--model.config.{name} is .*: {model_type} in TensorFlow ignores it"
    ):
        network_config(ModelConfig(type=model_type, config=values), **options)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 50} | values))
    config = resolve_init_from(ModelConfig(init_from=str(tmp_path)))
    with pytest.raises(UsageError, match=rf"{name} is .*: {model_type} in TensorFlow ignores it"):
        network_config(config, **options)


def test_values_without_effect_on_the_network_are_dropped_from_init_from(tmp_path: Path) -> None:
    values = {
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 32,
        "summary_type": "last",
        "task_specific_params": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(values | {"use_cache": False, "id2label": {0: "X"}}))
    config = resolve_init_from(ModelConfig(init_from=str(tmp_path))).config
    assert config["n_embd"] == 32
    assert config.keys().isdisjoint(
        {"n_ctx", "summary_type", "task_specific_params", "use_cache", "id2label"}
    )


# The form that transformers 5 writes.
MISTRAL_5: dict[str, Any] = {
    "model_type": "mistral",
    "head_dim": 8,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    "vocab_size": 50,
}


def test_rotary_positions_of_transformers_5_are_read(vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTRAL_5))
    config = resolve_init_from(ModelConfig(init_from=str(tmp_path)))
    actual = network_config(config, objective="clm", vocabulary=vocabulary, max_length=LENGTH)
    assert actual.rope_theta == 500
    assert actual.hidden_size == 32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            r"config.json: rope_parameters is .*'linear'.*, but TensorFlow's class supports only rope_type 'default'",
        ),
        ({"head_dim": 16}, "--model.config.head_dim is 16 .*: mistral in TensorFlow ignores it"),
    ],
)
def test_a_mistral_that_tensorflow_does_not_support_is_rejected(
    vocabulary: Vocabulary, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTRAL_5 | values))
    with pytest.raises(UsageError, match=message):
        config = resolve_init_from(ModelConfig(init_from=str(tmp_path)))
        network_config(config, objective="clm", vocabulary=vocabulary, max_length=LENGTH)


def test_published_debertas_can_be_configured(vocabulary: Vocabulary) -> None:
    # transformers reads these values without declaring them.
    values = {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    config = ModelConfig(type="deberta-v2", config=SMALL | values)
    actual = network_config(config, objective="mlm", vocabulary=vocabulary, max_length=LENGTH)
    assert actual.to_dict().items() >= values.items()


ROBERTA: dict[str, Any] = {"model_type": "roberta", "vocab_size": 50, **SMALL}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": "x"}, "hidden_size is 'x' .*: must be a whole number of at least 1"),
        ({"hidden_size": 16.0}, "hidden_size is 16.0 .*: must be a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0 .*: must be a whole number of at least 1"),
        ({"hidden_size": True}, "hidden_size is True .*: must be a whole number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1 .*: must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0 .*: must be a whole number"),
        ({"num_attention_heads": 3}, "hidden size .* is not a multiple of the 3 attention heads"),
        ({"max_position_embeddings": 10**12}, "is 1000000000000 .*: must be a finite number of at most"),
        ({"max_position_embeddings": float("nan")}, "is nan .*: must be a finite number"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan .*: must be a finite number"),
        (
            {"hidden_dropout_prob": 1.0},
            "hidden_dropout_prob is 1.0 .*: must be a number of at least 0 and below",
        ),
        ({"layer_norm_eps": -1e-5}, "layer_norm_eps is -1e-05 .*: must be a number and not negative"),
        ({"initializer_range": float("inf")}, "initializer_range is inf .*: must be a finite number"),
        ({"hidden_act": ["gelu"]}, "hidden_act is .'gelu'. .*: must be a string"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], but TensorFlow's class supports"),
        ({"model_type": ["bert"]}, r"transformers has no model type \['bert'\]"),
    ],
)
def test_invalid_configuration_values_are_rejected(
    vocabulary: Vocabulary, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ROBERTA | values))
    with pytest.raises(UsageError, match=message):
        config = resolve_init_from(ModelConfig(init_from=str(tmp_path)))
        network_config(config, objective="mlm", vocabulary=vocabulary, max_length=LENGTH)


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("gpt2", {"n_inner": "x"}, "n_inner is 'x': must be a whole number of at least 1"),
        ("gpt2", {"n_inner": 0}, "n_inner is 0: must be a whole number of at least 1"),
        ("deberta-v2", {"conv_kernel_size": 2.5}, "conv_kernel_size is 2.5: must be a whole number"),
        ("roberta", {5: 3}, "--model.config has 5, which is not a name"),
    ],
)
def test_values_that_are_null_by_default_are_checked(
    model_type: str, values: dict[Any, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_model(ModelConfig(type=model_type, config=values), "clm" if model_type == "gpt2" else "mlm")


@pytest.mark.parametrize("data", [b"{", b"", b"[]", b"null", b"\xff{"])
def test_a_configuration_that_is_not_a_json_object_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    (tmp_path / "tf_model.h5").write_bytes(b"")
    with pytest.raises(UsageError, match=r"config.json: not (JSON|a JSON object)"):
        resolve_init_from(ModelConfig(init_from=str(tmp_path)))
    with pytest.raises(UsageError, match=r"config.json: not (JSON|a JSON object)"):
        open_tokenizer(str(tmp_path), "mlm")


@pytest.mark.parametrize("architectures", [None, [], ["A", "B"], "BertForMaskedLM", [1]])
def test_an_exported_model_names_one_class(tmp_path: Path, architectures: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    (tmp_path / "tf_model.h5").write_bytes(b"")
    with pytest.raises(UsageError, match="not the name of one class"):
        open_tokenizer(str(tmp_path), "mlm")


@pytest.mark.parametrize("model_type", sorted(CONFIG_VALUES))
def test_the_defaults_of_each_model_type_are_valid(model_type: str) -> None:
    defaults = CONFIG_MAPPING[model_type]()
    for name in CONFIG_VALUES[model_type]:
        value = getattr(defaults, name, None)
        assert value is None or value_error(name, value, value) is None, name
    assert heads_error(defaults) is None


@pytest.mark.parametrize("model_type", ["xlm", "flaubert"])
def test_a_row_without_an_attention_mask_has_no_padding(vocabulary: Vocabulary, model_type: str) -> None:
    config = ModelConfig(type=model_type, config={"emb_dim": 16, "n_layers": 1, "n_heads": 2})
    model = LanguageModel.create(config, vocabulary=vocabulary, max_length=LENGTH, seed=3)
    # These types' default padding id is the end token's id here.
    ids = tf.constant([[0, 7, 4, 8, 2, 0, 9, 4, 5, 2, vocabulary.pad_id, 6]])
    rows = {"input_ids": ids, "positions": tf.range(LENGTH)[None]}
    masked = model.logits_at(**rows, attention_mask=tf.ones_like(ids))
    np.testing.assert_allclose(model.logits_at(**rows), masked, rtol=1e-5, atol=1e-6)
    assert model.network.config.pad_index == vocabulary.pad_id
