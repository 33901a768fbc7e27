"""The verb generate, compared with transformers' pipelines on the same exported folders."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    TFAutoModelForCausalLM,
    TFAutoModelForMaskedLM,
    pipeline,
)

from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import ROBERTA, network_of, run_of
from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import (
    drop_end_token,
    export_checkpoint,
    trim_vocabulary,
    write_network,
)
from tpu_trainer.exports.exported import open_model, open_tokenizer
from tpu_trainer.exports.sampling import Sampling
from tpu_trainer.network.model import LanguageModel
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
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    write_network(trim_vocabulary(network_of("roberta", ROBERTA, vocabulary), vocabulary), folder)
    return folder


def generator_of(folder: Path, sampling: Sampling = GREEDY) -> Generator:
    tokenizer, vocabulary = open_tokenizer(str(folder), "clm")
    return Generator(open_model(str(folder), vocabulary, "clm"), tokenizer, sampling)


def continue_texts(generator: Generator, texts: list[str], lines: list[int] | None = None) -> list[str]:
    return list(generator.continued(texts, lines=lines or list(range(len(texts))), max_new_tokens=10))


def test_greedy_texts_equal_the_pipelines(causal: Path) -> None:
    pipe = pipeline(
        "text-generation",
        model=TFAutoModelForCausalLM.from_pretrained(causal, use_safetensors=False),
        tokenizer=AutoTokenizer.from_pretrained(causal),
        framework="tf",
        dtype=None,  # the default is looked up in torch, which is not here
    )
    expected = [pipe(text, max_new_tokens=10, do_sample=False)[0]["generated_text"] for text in TEXTS]
    actual = continue_texts(generator_of(causal), TEXTS)
    assert actual == expected
    assert len({word for text in actual for word in text.split()}) > 8


@pytest.mark.parametrize(("clean_up", "expected"), [(False, "w1 , w2"), (True, "w1, w2")])
def test_spaces_before_punctuation_go_only_if_the_tokenizer_says_so(
    causal: Path, tmp_path: Path, clean_up: bool, expected: str
) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "w1": 1, ",": 2, "w2": 3}, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=clean_up
    ).save_pretrained(tmp_path)
    _, vocabulary = open_tokenizer(str(causal), "clm")
    model = open_model(str(causal), vocabulary, "clm")
    generator = Generator(model, AutoTokenizer.from_pretrained(tmp_path), GREEDY)
    assert generator._text("w1", [1], [2, 3]) == expected


def test_mask_predictions_equal_the_pipelines(masked: Path) -> None:
    pipe = pipeline(
        "fill-mask",
        model=TFAutoModelForMaskedLM.from_pretrained(masked, use_safetensors=False),
        tokenizer=AutoTokenizer.from_pretrained(masked),
        framework="tf",
        dtype=None,  # the default is looked up in torch, which is not here
    )
    tokenizer, vocabulary = open_tokenizer(str(masked), "mlm")
    filler = MaskFiller(open_model(str(masked), vocabulary, "mlm"), tokenizer)
    for text in ("w1 <mask> w3", "<mask> w9 w9 <mask>"):
        answers = pipe(text, top_k=7)
        expected = answers if isinstance(answers[0], list) else [answers]
        for predictions, entries in zip(filler.fill(text, 7), expected, strict=True):
            assert [p.token for p in predictions] == [entry["token_str"] for entry in entries]
            np.testing.assert_allclose(
                [p.probability for p in predictions], [e["score"] for e in entries], rtol=1e-4
            )


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


@pytest.mark.parametrize("model_type", ["bert", "ctrl", "gptj", "mistral", "opt", "roberta"])
def test_the_cache_of_earlier_tokens_does_not_change_texts(
    model_type: str, vocabulary: Vocabulary, tokenizer_folder: Path
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    gpt = {"n_embd": 16, "n_layer": 2, "n_head": 2}
    config = {
        "ctrl": gpt | {"dff": 24},
        "gptj": gpt | {"rotary_dim": 4},
        "mistral": sizes | {"num_key_value_heads": 1},
        "opt": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
        | {"word_embed_proj_dim": 16},
    }.get(model_type, sizes)
    model = LanguageModel.create(
        ModelConfig(type=model_type, config=config),
        objective="clm",
        vocabulary=vocabulary,
        max_length=MAX_LENGTH,
        seed=1,
    )
    rng = np.random.default_rng(0)
    for variable in model.network.trainable_variables:
        variable.assign_add(rng.normal(scale=0.3, size=variable.shape).astype(np.float32))
    generator = Generator(model, AutoTokenizer.from_pretrained(tokenizer_folder), GREEDY)
    ids = np.array([[7, 9, 30]], np.int32)
    (new_tokens,) = generator._new_tokens(ids, [0], 8)
    for token in new_tokens:
        positions = np.array([[ids.shape[1] - 1]], np.int32)
        logits = model.network(input_ids=ids, use_cache=False).logits.numpy()[0, positions[0, 0]]
        assert logits[token] == pytest.approx(logits.max(), abs=1e-4)
        ids = np.concatenate([ids, [[token]]], axis=1).astype(np.int32)
    assert len(new_tokens) == 8 or logits.argmax() >= 0


def test_a_prompt_does_not_end_with_the_end_token(tokenizer_folder: Path) -> None:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert tokenizer("w0 w1")["input_ids"] == [0, 5, 6, 2]
    drop_end_token(tokenizer)
    assert tokenizer("w0 w1")["input_ids"] == [0, 5, 6]
    drop_end_token(tokenizer)
    assert tokenizer("w0 w1")["input_ids"] == [0, 5, 6]
    assert tokenizer("")["input_ids"] == [0]


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
