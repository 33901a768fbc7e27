"""Chat templates of an exported model's tokenizer: prompts of messages, and the token that ends a turn."""

from __future__ import annotations

from typing import Any

from tpu_trainer.support.errors import UsageError


def chat_prompt(message: str, tokenizer: Any) -> str:
    """Returns the text of a conversation with one message of the user, after which the model answers.

    Raises:
        UsageError: If there is no chat template, it fails, or the message spells one of the tokenizer's special tokens,
            which only a template may write.
    """
    if not tokenizer.chat_template:
        raise UsageError(
            "--chat: the model's tokenizer has no chat template; omit the option, or train on conversations"
        )
    spelled = [token for token in special_tokens(tokenizer) if token in message]
    if spelled:
        raise UsageError(
            f"--chat: the message contains {spelled[0]!r}, which would be read as a special token: {message[:60]!r}…"
        )
    return _render(tokenizer, [{"role": "user", "content": message}], add_generation_prompt=True)


def special_tokens(tokenizer: Any) -> list[str]:
    """Returns the texts of the added tokens that are special, in the order of their ids."""
    added = tokenizer.added_tokens_decoder.values()
    return list(
        dict.fromkeys([*(str(token) for token in added if token.special), *tokenizer.all_special_tokens])
    )


def end_of_turn(tokenizer: Any) -> int | None:
    """Returns the id of the special token that the chat template writes after an answer; None if there is none."""
    if not tokenizer.chat_template:
        return None
    answer = "answer"
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}]
    try:
        text = _render(tokenizer, messages, add_generation_prompt=False)
    except UsageError:  # a template for conversations of another form
        return None
    following = text.rpartition(answer)[2]
    places = {token: following.find(token) for token in special_tokens(tokenizer) if token in following}
    if not places:
        return None
    # Of several tokens at one place, the longest one is read.
    first = min(places, key=lambda token: (places[token], -len(token)))
    return int(tokenizer.convert_tokens_to_ids(first))


def _render(tokenizer: Any, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except Exception as error:  # a template is a program, and raises what it likes
        raise UsageError(
            f"the chat template of the model's tokenizer fails: {' '.join(str(error).split())}"
        ) from error
