"""Configuration and weights of --model.init_from: files as PyTorch's classes write them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import configuration_of, export_of
from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.config_file import read_config
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from
from tpu_trainer.network import initial_values
from tpu_trainer.network.configuration import check_model, configure
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.weights import Network
from tpu_trainer.support.errors import UsageError


def loaded(folder: Path | str, vocabulary: Vocabulary, **config: Any) -> Network:
    """Returns the network that starts from a folder."""
    model = resolve_init_from(ModelConfig(init_from=str(folder), config=config))
    objective = FAMILIES[model.type].objective
    configuration = configure(model, objective=objective, vocabulary=vocabulary, max_length=MAX_LENGTH)
    network = Network(configuration.architecture)
    load_weights(network, str(folder), family=configuration.family, vocabulary=vocabulary)
    return network


def assert_same(actual: Network, expected: Network, vocabulary: Vocabulary, *, rtol: float = 0) -> None:
    for name, weight in expected.weights.items():
        value, target = actual.weights[name].numpy(), weight.numpy()
        if name.startswith(("embeddings.tokens", "head.weight", "head.bias")):
            assert not value[vocabulary.size :].any()
            value, target = value[: vocabulary.size], target[: vocabulary.size]
        np.testing.assert_allclose(value, target, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "roberta"])
def test_a_network_is_the_same_after_export_and_init_from(
    model_type: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = export_of(model_type, vocabulary, tmp_path)
    for folder in (tmp_path, f"file://{tmp_path}"):
        assert_same(loaded(folder, vocabulary), model.network, vocabulary)


def rewrite(folder: Path, change: Any) -> None:
    """Replaces the weights in a folder by `change` of their dictionary."""
    save_file(
        change(load_file(folder / "model.safetensors")),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 8e-3), (np.float64, 0)])
def test_other_floating_point_types_are_read(
    dtype: Any, rtol: float, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = export_of("llama", vocabulary, tmp_path)
    rewrite(tmp_path, lambda weights: {name: value.astype(dtype) for name, value in weights.items()})
    network = loaded(tmp_path, vocabulary)
    assert_same(network, model.network, vocabulary, rtol=rtol)


def test_names_of_published_files_are_understood(vocabulary: Vocabulary, tmp_path: Path) -> None:
    gpt2 = export_of("gpt2", vocabulary, tmp_path)
    further = {"h.0.attn.bias": np.ones([4, 4], np.uint8), "lm_head.weight": np.zeros([50, 16], np.float32)}
    rewrite(tmp_path, lambda weights: {
        name.removeprefix("transformer."): value for name, value in weights.items()
    } | further)  # fmt: skip
    assert_same(loaded(tmp_path, vocabulary), gpt2.network, vocabulary)
    bert = export_of("bert", vocabulary, tmp_path)
    rewrite(tmp_path, lambda weights: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    } | {"bert.pooler.dense.bias": np.zeros(3, np.float32)})  # fmt: skip
    assert_same(loaded(tmp_path, vocabulary), bert.network, vocabulary)


def test_padding_of_the_files_vocabulary_is_dropped(vocabulary: Vocabulary, tmp_path: Path) -> None:
    large = replace(vocabulary, size=600)
    model = export_of("gpt2", large, tmp_path)
    fewer = replace(vocabulary, size=596)
    assert_same(loaded(tmp_path, large), model.network, large)
    embeddings = loaded(tmp_path, fewer).weights["embeddings.tokens.weight"].numpy()
    np.testing.assert_array_equal(
        embeddings[:596], model.network.weights["embeddings.tokens.weight"].numpy()[:596]
    )


def test_postponed_weights_are_those_of_the_file(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_values, "_LEAST_ELEMENTS", 2)
    model = export_of("gpt2", vocabulary, tmp_path)
    configuration = configuration_of("gpt2", vocabulary)
    initial = InitialValues(postpone=True)
    network = Network(configuration.architecture, initial=initial)
    load_weights(network, str(tmp_path), family=configuration.family, vocabulary=vocabulary, initial=initial)
    for name, weight in network.weights.items():
        assert not weight.numpy().any()
        value = initial.value(weight)
        size = vocabulary.size if name == "embeddings.tokens.weight" else None
        np.testing.assert_array_equal(value[:size], model.network.weights[name].numpy()[:size], err_msg=name)


def test_weights_that_do_not_fit_are_named(vocabulary: Vocabulary, tmp_path: Path) -> None:
    def refused(message: str, **config: Any) -> None:
        with pytest.raises(UsageError, match=message):
            loaded(tmp_path, vocabulary, **config)

    export_of("gpt2", vocabulary, tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    refused(r"no weights for transformer.h.2.ln_1.weight, .* and \d+ more", n_layer=3)
    refused(r"no place for transformer.h.1.attn.c_attn.bias, .* and \d+ more", n_layer=1)
    refused(r"mlp.c_fc.weight has the shape \[16, 64\], but the model's has \[16, 32\]", n_inner=32)
    rewrite(tmp_path, lambda weights: {name: value.astype(np.int8) for name, value in weights.items()})
    refused("has the type I8; weights must be .*: dequantize")
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    refused(r"model.safetensors: cannot be read \(")
    (tmp_path / "model.safetensors").unlink()
    refused("no model.safetensors there; use a folder")
    (tmp_path / "pytorch_model.bin").write_bytes(b"code")
    refused("only pytorch_model.bin, which may contain code")
    index = tmp_path / "model.safetensors.index.json"
    for text, message in (
        ("[]", "not an index of weights"),
        (json.dumps({"weight_map": {"a": "../model.safetensors"}}), "no file '../model.safetensors'"),
        (json.dumps({"weight_map": {"a": "missing.safetensors"}}), "no file 'missing.safetensors'"),
        (json.dumps({"weight_map": {"a": 3}}), "no file 3"),
    ):
        index.write_text(text)
        refused(message)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    refused("vocabulary has 60 tokens, but the dataset's tokenizer 50")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"auto_map": {"AutoConfig": "code.Config"}}, "auto_map is .*: it names code"),
        ({"trust_remote_code": True}, "trust_remote_code is True: it names code"),
        ({"custom_pipelines": {"x": {}}}, "custom_pipelines is .*: it names code"),
        ({"kernel_config": {"RMSNorm": "a/b"}}, "kernel_config is .*: it names code"),
        (
            {"_attn_implementation": "kernels-community/flash-attn"},
            "_attn_implementation is .*: it names a kernel",
        ),
        ({"quantization_config": {"bits": 4}}, "the model is quantized"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({"n_embd": "x"}, "n_embd"),
        ({"invented": 3}, "invented is 3: configurations of this type have no such value"),
        ({"model_type": "xlm"}, "--model.type is 'xlm': not a supported causal-LM model; must be one of "),
    ],
)
def test_configurations_that_training_cannot_start_from(
    values: dict[str, Any], message: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50} | values))
    with pytest.raises(UsageError, match=message):
        model = resolve_init_from(ModelConfig(init_from=str(tmp_path)))
        check_model(model, "clm")


@pytest.mark.parametrize("data", [b"{", b"", b"[]", b"null", b"\xff{"])
def test_a_configuration_that_is_not_a_json_object_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"config.json: not (JSON|a JSON object)"):
        read_config(str(tmp_path))


def test_values_without_effect_are_dropped_and_those_of_transformers_4_translated(tmp_path: Path) -> None:
    general = {"use_cache": False, "id2label": {0: "X"}, "torch_dtype": "bfloat16", "is_decoder": False,
               "pruned_heads": {}, "task_specific_params": {}}  # fmt: skip
    gpt2 = {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 32, "summary_type": "last"}
    (tmp_path / "config.json").write_text(json.dumps(general | gpt2))
    assert resolve_init_from(ModelConfig(init_from=str(tmp_path))).config == {
        "n_embd": 32,
        "n_positions": 1024,
    }
    scaling = {"type": "linear", "factor": 2.0}
    llama = {"model_type": "llama", "rope_theta": 500.0, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(general | llama))
    rope = resolve_init_from(ModelConfig(init_from=str(tmp_path))).config["rope_parameters"]
    assert (rope["rope_theta"], rope["rope_type"], rope["factor"]) == (500, "linear", 2)
