"""Exports of every model type, loaded by transformers in PyTorch: no key too few or too many, and the same logits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

from tests.tpu_trainer.model_types import ALL, DROPOUT, other_configs, small_config  # noqa: E402
from tests.tpu_trainer_export.initial_weights import TABLE, measure  # noqa: E402
from tpu_trainer.network.model_types import ACTIVATIONS  # noqa: E402

ROOT = Path(__file__).parents[2]
_CLASSES = {"mlm": transformers.AutoModelForMaskedLM, "clm": transformers.AutoModelForCausalLM}


FROM_PYTORCH = [
    ("mlm", "roberta"),
    ("mlm", "deberta"),
    ("mlm", "deberta-v2"),
    ("clm", "gpt2"),
    ("clm", "opt"),
]


def write_pytorch(objective: str, model_type: str, folder: Path) -> None:
    """Saves a model with PyTorch's initial weights and biases that are not 0."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "max_position_embeddings": 40,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    config = transformers.CONFIG_MAPPING[model_type](**small_config(model_type), **sizes)
    model = _CLASSES[objective].from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs write_exports.py in the trainer's environment; returns its folder."""
    folder = tmp_path_factory.mktemp("exports")
    for objective, model_type in FROM_PYTORCH:
        write_pytorch(objective, model_type, folder / "pytorch" / f"{objective}-{model_type}")
    python = os.environ.get("TRAINER_PYTHON", str(ROOT / "trainer" / ".venv" / "bin" / "python"))
    search = os.pathsep.join([str(ROOT / "trainer"), str(ROOT)])
    subprocess.run(
        [python, Path(__file__).with_name("write_exports.py"), folder],
        check=True,
        env=os.environ | {"PYTHONPATH": search},
    )
    return folder


def loaded(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model in `folder`, and its reference."""
    model, report = _CLASSES[folder.name.split("-")[0]].from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model, dict(np.load(folder / "reference.npz"))


def logits_of(model: Any, reference: dict[str, Any], *, training: bool = False) -> np.ndarray:
    """The logits of the real tokens."""
    ids, mask = (torch.tensor(reference[key]).long() for key in ("input_ids", "attention_mask"))
    torch.manual_seed(0)
    with torch.no_grad():
        logits = model.train(training)(input_ids=ids, attention_mask=mask).logits.numpy()
    return logits[reference["attention_mask"] > 0]


def test_every_model_type_loads_and_gives_the_same_logits(exports: Path, subtests: pytest.Subtests) -> None:
    folders = sorted(path.parent for path in exports.glob("*/reference.npz"))
    names = {folder.name for folder in folders}
    for objective, model_type in ALL:
        assert {f"{objective}-{model_type}", f"{objective}-{model_type}-other0"} <= names
    for folder in folders:
        with subtests.test(folder.name):
            model, reference = loaded(folder)
            expected = reference["logits"][reference["attention_mask"] > 0]
            np.testing.assert_allclose(logits_of(model, reference), expected, rtol=1e-4, atol=1e-5)
            # The logits are not nearly constant, so the comparison distinguishes models.
            assert expected.std() > 0.01


def test_activations_have_the_same_values(exports: Path, subtests: pytest.Subtests) -> None:
    values = dict(np.load(exports / "activations.npz"))
    inputs = values.pop("inputs")
    assert values.keys() == ACTIVATIONS
    for name, expected in values.items():
        with subtests.test(name):
            actual = transformers.activations.ACT2FN[name](torch.tensor(inputs)).numpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


# These values limit the row length and have no other effect.
_BOUNDS = {
    "ctrl": {"n_positions"},
    "gptj": {"n_positions"},
    "mistral": {"max_position_embeddings", "sliding_window"},
}


# The classes' defaults of values that their configurations do not declare.
_UNDECLARED: dict[str, Any] = {
    "conv_act": "tanh",
    "conv_kernel_size": 0,
    "norm_rel_ebd": "none",
    "position_buckets": -1,
    "rope_theta": 1e4,
    "share_att_key": False,
}


def _twin(model: Any, changes: dict[str, Any]) -> Any:
    """Returns a model with `changes` to the configuration and the weights of `model`; None if the shapes differ."""
    values = model.config.to_dict() | changes
    if "rope_theta" in changes:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": values.pop("rope_theta")}
    twin = type(model)(type(model.config).from_dict(values))
    shapes = [{name: value.shape for name, value in m.state_dict().items()} for m in (model, twin)]
    if shapes[0] != shapes[1]:
        return None
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.mark.parametrize(("objective", "model_type"), ALL, ids=lambda value: value)
def test_the_comparison_would_show_a_value_that_is_ignored(
    exports: Path, objective: str, model_type: str, subtests: pytest.Subtests
) -> None:
    defaults = transformers.CONFIG_MAPPING[model_type]().to_dict() | _UNDECLARED | small_config(model_type)
    for number, values in enumerate(other_configs(model_type)):
        folder = exports / f"{objective}-{model_type}-other{number}"
        model, reference = loaded(folder)
        expected = logits_of(model, reference)
        dropouts = json.loads((folder / "training.json").read_text())["dropouts"]
        assert dropouts.keys() == values.keys() & set(DROPOUT)
        for name, has_effect in dropouts.items():
            with subtests.test(f"{number} {name}"):
                assert has_effect, "no effect in TensorFlow"
                twin_of_one = _twin(model, {other: 0.0 for other in dropouts if other != name})
                assert np.abs(logits_of(twin_of_one, reference, training=True) - expected).max() > 1e-3
        # The next test compares the initial weights.
        without_logits = {name for name in values if name in DROPOUT or "init" in name}
        for name in values.keys() - without_logits - _BOUNDS.get(model_type, set()):
            if values[name] != defaults.get(name):
                with subtests.test(f"{number} {name}"):
                    twin = _twin(model, {name: defaults.get(name)})
                    assert twin is None or np.abs(logits_of(twin, reference) - expected).max() > 1e-5


def test_initial_weights_follow_the_values_that_can_be_set(exports: Path, subtests: pytest.Subtests) -> None:
    for folder in sorted(path.parent for path in exports.glob("*/training.json")):
        with subtests.test(folder.name):
            model, _ = loaded(folder)
            torch.manual_seed(0)
            torch_weights = dict(type(model)(model.config).named_parameters())
            spreads = json.loads((folder / "training.json").read_text())["spreads"]
            compared_spreads = {name: std for name, std in spreads.items() if name in torch_weights}
            assert len(compared_spreads) > 4
            for name, std in compared_spreads.items():
                assert std == pytest.approx(float(torch_weights[name].detach().std()), rel=0.3), name


def test_the_tokenizer_loads(exports: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exports / "mlm-roberta")
    assert len(tokenizer) == 50
    assert tokenizer("w0 <mask> w2")["input_ids"] == [0, 5, 4, 7, 2]
    assert tokenizer.model_max_length == 16


@pytest.mark.parametrize(("objective", "model_type"), FROM_PYTORCH, ids=lambda value: value)
def test_a_model_of_pytorch_is_the_same_after_init_from_and_export(
    exports: Path, objective: str, model_type: str
) -> None:
    source = _CLASSES[objective].from_pretrained(exports / "pytorch" / f"{objective}-{model_type}")
    model, reference = loaded(exports / f"{objective}-{model_type}-from-pytorch")
    np.testing.assert_allclose(
        logits_of(model, reference), logits_of(source, reference), rtol=1e-4, atol=1e-5
    )


def test_pipelines_answer_as_the_verbs_do(exports: Path, subtests: pytest.Subtests) -> None:
    folders = [path.parent for path in sorted(exports.glob("*/answers.json"))]
    assert len(folders) == len(ALL) + len(FROM_PYTORCH)
    for folder in folders:
        answers = json.loads((folder / "answers.json").read_text())
        with subtests.test(folder.name):
            if folder.name.startswith("mlm"):
                check_fill_mask(folder, answers)
            else:
                check_generation(folder, answers)


def check_fill_mask(folder: Path, answers: dict[str, list[tuple[str, float]]]) -> None:
    """Asks the pipeline for what the verb has answered."""
    fill = transformers.pipeline("fill-mask", model=str(folder))
    for text, expected in answers.items():
        predictions = fill(text, top_k=5)
        assert [answer["token_str"] for answer in predictions] == [token for token, _ in expected]
        scores = [answer["score"] for answer in predictions]
        np.testing.assert_allclose(scores, [probability for _, probability in expected], rtol=1e-4)


# Their positions count from the pad token's id in training, in forward() and in the verb `generate`. generate() of
# transformers 5 counts from 0 unless it gets position_ids.
_POSITIONS_FROM_PADDING = {"camembert", "roberta", "roberta-prelayernorm", "xlm-roberta"}


def check_generation(folder: Path, answers: dict[str, str]) -> None:
    """Asks the pipeline for what the verb has answered."""
    generate = transformers.pipeline("text-generation", model=str(folder))
    first = generate.tokenizer.pad_token_id + 1 if folder.name[4:] in _POSITIONS_FROM_PADDING else 0
    for text, expected in answers.items():
        positions = torch.arange(first, first + len(text.split()))[None]
        (answer,) = generate(text, max_new_tokens=8, do_sample=False, position_ids=positions)
        # The pipeline decodes the new tokens separately, and this tokenizer has no decoder that adds the space.
        assert answer["generated_text"].replace(" ", "") == expected.replace(" ", "")


def test_what_a_tokenizer_returns_is_what_the_model_was_trained_on(
    exports: Path, subtests: pytest.Subtests
) -> None:
    for objective, model_type in ALL:
        folder = exports / f"{objective}-{model_type}"
        with subtests.test(folder.name):
            model, _ = loaded(folder)
            encoded = transformers.AutoTokenizer.from_pretrained(folder)("w1 w2 w3", return_tensors="pt")
            with torch.no_grad():
                actual = model(**encoded).logits
                expected = model(input_ids=encoded["input_ids"]).logits
            np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_the_table_of_initial_weights_is_pytorchs(subtests: pytest.Subtests) -> None:
    table = json.loads(TABLE.read_text())
    for objective, model_type in ALL:
        with subtests.test(f"{objective}-{model_type}"):
            expected, measured = table[f"{objective} {model_type}"], measure(objective, model_type)
            assert measured.keys() == expected.keys()
            for name, moments in measured.items():
                assert moments == pytest.approx(expected[name], rel=0.1, abs=0.003), name
