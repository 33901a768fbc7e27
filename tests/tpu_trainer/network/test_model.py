"""The model: logits at selected positions, vocabulary, positions and configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.model_types import ALL, model_of, small_config
from tpu_trainer.config import ModelConfig
from tpu_trainer.data.token_counts import target_counts, unigram_entropy
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.configuration import check_model, configure
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.support.errors import UsageError

LENGTH = 12


def rows(vocabulary: Vocabulary) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns four rows, the last two padded, and their attention mask."""
    ids = np.random.default_rng(1).integers(5, vocabulary.size, size=(4, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    for row, length in ((2, 9), (3, 4)):
        ids[row, length:], mask[row, length:] = vocabulary.pad_id, 0
    return tf.constant(ids), tf.constant(mask)


@pytest.mark.parametrize("model_type", ["roberta", "gpt2"])
def test_logits_at_positions_equal_those_of_all(model_type: str, vocabulary: Vocabulary) -> None:
    model = model_of(model_type, vocabulary, length=LENGTH)
    inputs = Inputs(*rows(vocabulary))
    positions = np.array([[0, 11, 5], [3, 3, 1], [8, 0, 2], [3, 2, 1]], np.int32)
    chosen = model.logits_at(inputs, positions=positions).numpy()
    assert chosen.shape == (4, 3, 128)
    expected = np.take_along_axis(model.logits_at(inputs).numpy(), positions[..., None], axis=1)
    np.testing.assert_allclose(chosen[..., :50], expected[..., :50], rtol=1e-4, atol=1e-5)


def test_ids_that_pad_the_vocabulary_are_never_predicted(vocabulary: Vocabulary) -> None:
    model = model_of("roberta", vocabulary, length=LENGTH)
    bias = np.arange(128, dtype=np.float32)  # which would make the last of them the likeliest
    model.network.weights["head.bias"].assign(bias)
    ids, _ = rows(vocabulary)
    logits = model.logits_at(Inputs(ids), positions=np.zeros([4, 1], np.int32))
    probabilities = tf.nn.softmax(logits).numpy()
    assert probabilities[..., 50:].max() == 0
    np.testing.assert_allclose(probabilities[..., :50].sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("pad_id", [0, 1, 3])
def test_roberta_counts_positions_from_the_tokenizers_padding_id(vocabulary: Vocabulary, pad_id: int) -> None:
    model = model_of("roberta", replace(vocabulary, pad_id=pad_id), length=LENGTH)
    ids, mask = rows(model.vocabulary)
    positions = model.network.architecture.positions
    assert positions is not None
    assert (positions.count, positions.first) == (LENGTH + pad_id + 1, pad_id + 1)
    table = model.network.weights["embeddings.positions.weight"]
    before = model.logits_at(Inputs(ids, mask)).numpy()
    changed = table.numpy()
    changed[: pad_id + 1] += 1  # rows of no token
    table.assign(changed)
    is_token = mask.numpy() > 0
    np.testing.assert_array_equal(model.logits_at(Inputs(ids, mask)).numpy()[is_token], before[is_token])


def test_weights_are_a_function_of_the_seed(vocabulary: Vocabulary) -> None:
    from tpu_trainer.network.weights import Network

    architecture = model_of("roberta", vocabulary, length=LENGTH).network.architecture
    first, same_seed, other_seed = (Network(architecture, seed=seed).weights for seed in (1, 1, 2))
    for name, weight in first.items():
        np.testing.assert_array_equal(weight, same_seed[name])
    assert any((weight != other_seed[name]).numpy().any() for name, weight in first.items())


def test_the_output_bias_is_set_to_log_frequencies(vocabulary: Vocabulary) -> None:
    model = model_of("bert", vocabulary, length=LENGTH)
    counts = np.arange(50.0) * 100
    model.init_output_bias(target_counts(counts, vocabulary))
    shares = np.exp(model.network.weights["head.bias"].numpy()[:50])
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(shares[5:], (counts[5:] + 1) / (counts[5:].sum() + 50), rtol=1e-5)
    assert shares[:5].max() < 1e-5  # special ids are never targets, however frequent
    with pytest.raises(
        UsageError, match=r"--model.init_output_bias: models of this type have no output bias"
    ):
        model_of("llama", vocabulary, length=LENGTH).init_output_bias(counts)


def test_unigram_entropy_leaves_out_special_tokens(vocabulary: Vocabulary) -> None:
    counts = np.zeros(50)
    counts[[0, 2]] = 1e6
    counts[10:18] = 7
    assert unigram_entropy(counts, vocabulary) == pytest.approx(np.log(8))


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("gpt3", {}, r"--model.type is 'gpt3': not a supported .*gpt2"),
        ("xlm", {}, r"--model.type is 'xlm': not a supported masked-LM model; must be one of bert, .*roberta"),
        ("roberta", {"hidden_sise": 8}, r"--model.config.hidden_sise is 8: .* no such value"),
        ("roberta", {"vocab_size": 8}, r"--model.config.vocab_size: the tokenizer determines it"),
        ("roberta", {5: 3}, r"--model.config has 5, which is not a name"),
        ("roberta", {"is_decoder": True}, r"is_decoder"),
        ("roberta", {"chunk_size_feed_forward": 3}, r"chunk_size_feed_forward is 3: not supported; omit it"),
        ("bert", {"hidden_act": "crelu"}, r"hidden_act"),
        ("roberta", {"max_position_embeddings": 13}, r"is 13: rows of 12 tokens need 14 in a model of type"),
        ("roberta", {"hidden_size": "x"}, r"--model.config of a model of type 'roberta': .*hidden_size"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, r"'dynamic'"),
        ("gpt2", {"n_head": 5}, r"5 heads do not divide the hidden size of 768"),
        ("gpt2", {"resid_pdrop": 1.0}, r"resid_pdrop"),
        ("llama", {"num_key_value_heads": 3}, r"32 heads are no multiple of the 3 key-value heads"),
        ("llama", {"num_hidden_layers": 0}, r"num_hidden_layers"),
        ("llama", {"rms_norm_eps": float("nan")}, r"rms_norm_eps"),
        ("roberta", {"max_position_embeddings": 10**12}, r"max_position_embeddings"),
    ],
)  # fmt: skip
def test_unsupported_configurations_are_rejected(
    vocabulary: Vocabulary, model_type: str, values: dict[Any, Any], message: str
) -> None:
    objective = "clm" if model_type in ("gpt2", "gpt3", "llama") else "mlm"
    with pytest.raises(UsageError, match=message):
        configure(
            ModelConfig(type=model_type, config=values),
            objective=objective,
            vocabulary=vocabulary,
            max_length=LENGTH,
        )


@pytest.mark.parametrize(("objective", "model_type"), ALL)
def test_the_published_defaults_of_each_type_are_supported(objective: str, model_type: str) -> None:
    assert check_model(ModelConfig(type=model_type), FAMILIES[model_type].objective).objective == objective


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("bert", {"position_embedding_type": "absolute", "directionality": "bidi", "pooler_fc_size": 768}),
        ("distilbert", {"tie_weights_": True, "sinusoidal_pos_embds": False, "qa_dropout": 0.2}),
        ("electra", {"generator_size": "0.25", "summary_type": "last"}),
        ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 10000, "hidden_dropout_prob": 0}),
        ("gptj", {"rotary": True, "scale_attn_weights": True, "summary_use_proj": False}),
        ("modernbert", {"layer_norm_eps": 1e-5, "reference_compile": None, "classifier_pooling": "mean"}),
        ("opt", {"activation_dropout": 0.0, "_remove_final_layer_norm": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_of_published_configurations_are_taken(model_type: str, values: dict[str, Any]) -> None:
    objective = FAMILIES[model_type].objective
    assert check_model(ModelConfig(type=model_type, config=values), objective) is FAMILIES[model_type]


def test_modernberts_first_and_last_token_are_the_tokenizers(vocabulary: Vocabulary) -> None:
    config = ModelConfig(type="modernbert", config=small_config("modernbert"))
    values = configure(config, objective="mlm", vocabulary=vocabulary, max_length=LENGTH).values
    assert (values["cls_token_id"], values["sep_token_id"]) == (vocabulary.bos_id, vocabulary.eos_id)


def test_opts_configuration_does_not_count_the_rows_before_the_first_position(vocabulary: Vocabulary) -> None:
    config = ModelConfig(type="opt", config=small_config("opt"))
    configured = configure(config, objective="clm", vocabulary=vocabulary, max_length=LENGTH)
    positions = configured.architecture.positions
    assert positions is not None
    assert (configured.values["max_position_embeddings"], positions.count) == (LENGTH, LENGTH + 2)
    assert configured.max_length == LENGTH


def test_keys_of_earlier_releases_are_read(vocabulary: Vocabulary) -> None:
    def frequencies(**values: Any) -> tuple[float, ...]:
        config = ModelConfig(type="llama", config=small_config("llama") | values)
        options: dict[str, Any] = {"objective": "clm", "vocabulary": vocabulary, "max_length": LENGTH}
        return configure(config, **options).architecture.ropes[0].frequencies

    rope = {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}
    assert frequencies(rope_parameters=rope) == frequencies(
        rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0}
    )
    assert frequencies(rope_parameters=rope) != frequencies()
