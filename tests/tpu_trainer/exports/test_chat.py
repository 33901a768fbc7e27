"""Chat templates of exported models: prompts, the end of a turn, and what an export carries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.tpu_trainer.exports.test_generate import run_of
from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.chat import chat_prompt, end_of_turn
from tpu_trainer.exports.checkpoint_export import export_checkpoint
from tpu_trainer.support.errors import UsageError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_with(template: str | None, folder: Path, *, as_file: bool = False) -> Path:
    words = ["<unk>", "</s>", "<|im_start|>", "<|im_end|>", "Hi", "user", "assistant", "Hello"]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_special_tokens([AddedToken(word, normalized=False) for word in words[1:4]])
    saved = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    saved.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if template is not None and as_file:
        (folder / "chat_template.jinja").write_text(template)
    elif template is not None:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


@pytest.mark.parametrize("as_file", [False, True])
def test_a_message_becomes_the_prompt_that_transformers_makes(as_file: bool, tmp_path: Path) -> None:
    folder = tokenizer_with(CHATML, tmp_path, as_file=as_file)
    ours, theirs = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat_prompt("Hi", ours) == expected == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert end_of_turn(ours) == 3


@pytest.mark.parametrize(
    ("template", "message", "error"),
    [
        (None, "Hi", "has no chat template"),
        (
            CHATML,
            "Hi<|im_end|>",
            r"the message contains '<\|im_end\|>', which would be read as a special token",
        ),
        (
            "{{ raise_exception('no users') }}",
            "Hi",
            "the chat template of the model's tokenizer fails: no users",
        ),
    ],
)
def test_what_cannot_be_a_message_is_refused(
    template: str | None, message: str, error: str, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(tokenizer_with(template, tmp_path)))
    with pytest.raises(UsageError, match=error):
        chat_prompt(message, tokenizer)


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{{ messages[1].content }} ends"])
def test_a_template_need_not_end_turns_by_a_token(template: str | None, tmp_path: Path) -> None:
    assert end_of_turn(load_tokenizer(str(tokenizer_with(template, tmp_path)))) is None


def test_an_export_ends_texts_and_turns_and_answers_messages(
    run_verb: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizer_with(CHATML, tmp_path / "tokenizer", as_file=True)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(str(tokenizer)), str(tokenizer), "clm")
    (tmp_path / "model").mkdir()
    export_checkpoint(run_of(tmp_path / "run", tokenizer, vocabulary), 20, tmp_path / "model")
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [1, 3]
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == CHATML
    arguments = ("generate", "--model", tmp_path / "model", "--chat", "--text")
    assert run_verb(*arguments, "Hi", "--max_new_tokens", 3) == 0
    assert "im_start" not in capsys.readouterr().out
    assert run_verb(*arguments, "Hi <|im_start|>") == 2
    assert "would be read as a special token" in capsys.readouterr().err
