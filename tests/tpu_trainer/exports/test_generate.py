"""The verbs generate and fill-mask. tests/tpu_trainer_export compares them with transformers' pipelines."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.tpu_trainer.model_types import EVERY_TYPE, model_of
from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import export_of, run_of
from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import export_checkpoint
from tpu_trainer.exports.exported import open_model, open_tokenizer
from tpu_trainer.exports.sampling import Sampling
from tpu_trainer.exports.saved_tokenizer import save_tokenizer
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.verbs.fill_mask import MaskFiller
from tpu_trainer.verbs.generate import Generator

GREEDY = Sampling(temperature=0.0, top_k=None, top_p=None, seed=0)
TEXTS = ["w1 w2 w3", "w40", "w7 w7 w30", "w5 w6 w7 w8 w9"]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, vocabulary: Vocabulary) -> Path:
    """Returns an export of a GPT-2 with random weights, large enough that texts have different words."""
    folder = tmp_path_factory.mktemp("causal")
    export_checkpoint(run_of(folder / "run", tokenizer_folder, vocabulary), 20, folder)
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, vocabulary: Vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    save_tokenizer(str(tokenizer_folder), folder, max_length=MAX_LENGTH, token_types=True)
    export_of("roberta", vocabulary, folder)
    return folder


def generator_of(folder: Path, sampling: Sampling = GREEDY) -> Generator:
    tokenizer, vocabulary = open_tokenizer(str(folder), "clm")
    return Generator(open_model(str(folder), tokenizer, vocabulary, "clm"), tokenizer, sampling)


def continue_texts(generator: Generator, texts: list[str], lines: list[int] | None = None) -> list[str]:
    continuations = generator.continuations(texts, lines=lines or list(range(len(texts))), max_new_tokens=10)
    return [text + continuation for text, continuation in zip(texts, continuations, strict=True)]


@pytest.mark.parametrize(("clean_up", "expected"), [(False, "w1 , w2"), (True, "w1, w2")])
def test_spaces_before_punctuation_go_only_if_the_tokenizer_says_so(
    causal: Path, tmp_path: Path, clean_up: bool, expected: str
) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "w1": 1, ",": 2, "w2": 3}, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=clean_up
    ).save_pretrained(tmp_path)
    generator = generator_of(causal)
    generator._tokenizer = load_tokenizer(str(tmp_path))
    assert "w1" + generator._text([1], [2, 3]) == expected


def test_mask_predictions_are_the_models(masked: Path) -> None:
    tokenizer, vocabulary = open_tokenizer(str(masked), "mlm")
    model = open_model(str(masked), tokenizer, vocabulary, "mlm")
    text = "<mask> w9 w9 <mask>"
    logits = model.logits_at(Inputs(tf.constant([tokenizer(text)["input_ids"]]))).numpy()[0]
    for position, predictions in zip((1, 4), MaskFiller(model, tokenizer).fill(text, 7), strict=True):
        probabilities = tf.nn.softmax(logits[position]).numpy()
        best = np.argsort(-probabilities)[:7]
        assert [prediction.token for prediction in predictions] == tokenizer.convert_ids_to_tokens(best)
        actual = [prediction.probability for prediction in predictions]
        np.testing.assert_allclose(actual, probabilities[best], rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_do_not_depend_on_the_batch(causal: Path, temperature: float) -> None:
    generator = generator_of(causal, Sampling(temperature=temperature, top_k=None, top_p=0.9, seed=5))
    batch_texts = continue_texts(generator, TEXTS)
    assert batch_texts == [continue_texts(generator, [text], [line])[0] for line, text in enumerate(TEXTS)]
    assert len(set(batch_texts)) == 4


def test_the_end_token_ends_a_text(causal: Path) -> None:
    generator = generator_of(causal)
    (text,) = continue_texts(generator, ["w1 w2 w3"])
    words = text.split()
    # Imitates a model that generates the end token as its third token.
    generator._tokenizer.add_special_tokens({"eos_token": words[5]})
    before = words.index(words[5], 3)
    assert continue_texts(generator, ["w1 w2 w3"]) == [" ".join(words[:before])]


@pytest.mark.parametrize(
    ("objective", "model_type"),
    [case for case in EVERY_TYPE if case.values[0] == "clm"],
    ids=lambda value: value,
)
def test_the_cache_of_earlier_tokens_does_not_change_texts(
    objective: str, model_type: str, vocabulary: Vocabulary, tokenizer_folder: Path
) -> None:
    model = model_of(model_type, vocabulary, length=MAX_LENGTH, noise=0.3)
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.model_max_length = MAX_LENGTH
    prompts = [[7, 9, 30], [8], [5, 6, 7, 8, 9, 10]]
    continuations = Generator(model, tokenizer, GREEDY)._new_tokens(prompts, [0, 1, 2], [8, 8, 3])
    assert [len(new) <= count for new, count in zip(continuations, (8, 8, 3), strict=True)] == [True] * 3
    for prompt, new in zip(prompts, continuations, strict=True):
        assert new or model_type != "gpt2"
        logits = model.logits_at(Inputs(tf.constant([prompt + new]))).numpy()[0]
        for token, row in zip(new, logits[len(prompt) - 1 :], strict=False):
            assert row[token] == pytest.approx(row.max(), abs=1e-4)


def test_the_verb(
    run_verb: Callable[..., int],
    causal: Path,
    masked: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = continue_texts(generator_of(causal), TEXTS)
    capsys.readouterr()
    stdin = "".join(f"{text}\n" for text in TEXTS).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert run_verb("generate", "--model", causal, "--max_new_tokens", 10, "--batch_size", 3) == 0
    assert capsys.readouterr().out.splitlines() == expected
    options = ("--temperature", 1.5, "--top_k", 20, "--top_p", 0.9)
    outputs = []
    for seed in (1, 1, 2):
        assert run_verb("generate", "--model", causal, "--text", "w1", "--seed", seed, *options) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert 3 < len(outputs[0].split()) <= MAX_LENGTH
    for arguments, message in (
        (("--text", "w1 " * 12), "a text of 13 tokens and 10 more do not fit into the model"),
        (("--text", "w1", "--top_k", 3), "--top_k is 3: nothing is sampled with --temperature 0"),
        (("--text", "w1", "--top_p", 1.5), "--top_p is 1.5: must be in (0, 1]"),
        (("--text", "w1", "--temperature", -1), "--temperature is -1.0: must not be negative"),
        (("--text", "w1", "--model", masked), "the model is a RobertaForMaskedLM; use the verb fill-mask"),
        (
            ("--text", "w1", "--model", causal.parent),
            "no config.json there; use a folder written by `export`",
        ),
    ):
        assert run_verb("generate", "--model", causal, "--max_new_tokens", 10, *arguments) == 2
        assert message in capsys.readouterr().err
    assert run_verb("fill-mask", "--model", causal, "--text", "<mask>") == 2
    assert "the model is a GPT2LMHeadModel; use the verb generate" in capsys.readouterr().err
