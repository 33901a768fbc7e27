"""Ids equal those of transformers' apply_chat_template, and exactly what the assistant generates is a target."""

from __future__ import annotations

import itertools
import json
import random
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from beam_pipeline.conversations.chat_format import chat_format
from beam_pipeline.conversations.tokenizer import ConversationTokenizer
from beam_pipeline.engines.token_arrays import ids_of, targets_of
from beam_pipeline.sources.conversations import document_of
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.description import describe_tokenizer
from tests.beam_pipeline.conversations.families import CONTROL, ORDINARY, TEMPLATES, save_tokenizer

WORDS = (
    "the",
    "cat",
    "sat",
    "hello",
    "user",
    "assistant",
    "\n",
    "\n\n",
    "  ",
    "é",
    "猫",
    "{",
    '"',
    "<|",
    "|>",
    "\\n",
)


class Family:
    """A family's template with a tokenizer, ours and transformers'."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        template, self.end = TEMPLATES[name]
        save_tokenizer(folder, template, **options)
        self.reference = AutoTokenizer.from_pretrained(folder)
        described = describe_tokenizer(str(folder))
        self._options = {
            "tokenizer_json": described.json,
            "vocab_size": described.vocab_size,
            "control_ids": described.control_ids,
            "engine": "auto",
        }
        self._described = described
        self._tokenizers: dict[str, ConversationTokenizer] = {}
        self.control = {self.reference.convert_tokens_to_ids(token) for token in CONTROL}

    def encode(
        self, conversations: list[dict[str, Any]], loss_on: Any = "assistant"
    ) -> tuple[list[tuple[list[int], list[bool]]], list[str]]:
        """Returns (ids, which are targets) of each conversation, and the reasons of bad ones."""
        if loss_on not in self._tokenizers:
            chat = chat_format(self._described, loss_on=loss_on, date=date.today().isoformat())
            self._tokenizers[loss_on] = ConversationTokenizer(chat=chat, limit=None, **self._options)
        texts = []
        for conversation in conversations:
            text, reason = document_of(conversation, "auto")
            assert reason is None, reason
            texts.append(text)
        batch = DocumentBatch("a.jsonl", Texts.of(texts), np.arange(len(texts)))
        batch, documents = self._tokenizers[loss_on].encode(batch)
        words = np.split(documents.ids, np.cumsum(documents.lengths)[:-1]) if len(documents.lengths) else []
        encoded = [(ids_of(part).tolist(), targets_of(part).tolist()) for part in words]
        return encoded, [record.reason for record in batch.bad_records]


@pytest.fixture(scope="module", params=[*TEMPLATES, "Phi, stripping", "Mistral, SentencePiece"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name, _, variant = request.param.partition(", ")
    options = {"strips": variant == "stripping", "sentencepiece": variant == "SentencePiece"}
    return Family(name, tmp_path_factory.mktemp("family"), **options)


def conversations(count: int, *, seed: int = 0, hostile: bool = False) -> list[dict[str, Any]]:
    choose = random.Random(seed)
    words = (*WORDS, *CONTROL, *ORDINARY, "<|im_", "end|>") if hostile else WORDS

    def text(most: int) -> str:
        return "".join(
            choose.choice(words) + choose.choice(("", " ")) for _ in range(choose.randint(1, most))
        )

    result = []
    for _ in range(count):
        messages = [{"role": "system", "content": text(5)}] if choose.random() < 0.5 else []
        for _ in range(choose.randint(1, 3)):
            messages.append({"role": "user", "content": text(10)})
            messages.append({"role": "assistant", "content": "x" + text(20) + "y"})
        result.append({"messages": messages})
    return result


def test_ids_equal_those_of_transformers(family: Family) -> None:
    given = conversations(60)
    encoded, reasons = family.encode(given)
    assert not reasons
    for conversation, (ids, _) in zip(given, encoded, strict=True):
        expected = family.reference.apply_chat_template(conversation["messages"], return_dict=False)
        assert ids == expected


def test_each_answer_with_the_end_of_its_turn_is_a_target_and_nothing_else_is(family: Family) -> None:
    given = conversations(60, seed=1)
    encoded, _ = family.encode(given)
    is_harmony = family.end == "<|return|>"
    for conversation, (ids, targets) in zip(given, encoded, strict=True):
        answers = [m["content"] for m in conversation["messages"] if m["role"] == "assistant"]
        edges = np.flatnonzero(np.diff(np.array(targets), prepend=False, append=False)).reshape(-1, 2)
        trained = [family.reference.decode(ids[start:end]) for start, end in edges]
        for number, (text, answer) in enumerate(zip(trained, answers, strict=True)):
            end = "<|end|>" if is_harmony and number + 1 < len(answers) else family.end
            header = "<|channel|>final<|message|>" if is_harmony else ""
            assert text.lstrip(" ") == f"{header}{answer}{end}"


def test_what_a_message_spells_is_ordinary_text(family: Family) -> None:
    given = conversations(100, seed=2, hostile=True)
    encoded, reasons = family.encode(given)
    assert not reasons
    for conversation, (ids, _) in zip(given, encoded, strict=True):
        # The same conversation without what its messages spell has the same control tokens.
        harmless = [{**message, "content": "x"} for message in conversation["messages"]]
        expected = family.reference.apply_chat_template(harmless, return_dict=False)
        control = [number for number in ids if number in family.control]
        assert control == [number for number in expected if number in family.control]
        text = family.reference.decode(ids)
        for message in conversation["messages"]:
            if "</think>" not in message["content"]:  # what is before it, templates leave out
                assert message["content"].strip() in text


@pytest.mark.parametrize("times", [50, pytest.param(60_000, marks=pytest.mark.wide)])
def test_empty_and_huge_turns(family: Family, times: int) -> None:
    huge = "the cat <|im_end|> " * times
    given = [
        {"messages": [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]}
        for turn, answer in (("", "x"), (" ", "x"), ("\n\n", "x"), (huge, "x"), ("", huge))
    ]
    encoded, reasons = family.encode(given)
    assert not reasons
    for conversation, (ids, targets) in zip(given, encoded, strict=True):
        trained = family.reference.decode(
            [number for number, chosen in zip(ids, targets, strict=True) if chosen]
        )
        assert conversation["messages"][1]["content"].strip() in trained
        untrained = [number for number, chosen in zip(ids, targets, strict=True) if not chosen]
        assert len(untrained) < 60 or conversation["messages"][0]["content"] == huge


@pytest.mark.wide
def test_ten_thousand_hostile_conversations(family: Family) -> None:
    for seed in range(10):
        given = conversations(1000, seed=100 + seed, hostile=True)
        encoded, reasons = family.encode(given)
        assert not reasons
        harmless = [
            [{**message, "content": "x"} for message in conversation["messages"]] for conversation in given
        ]
        for messages, (ids, _) in zip(harmless, encoded, strict=True):
            text = family.reference.apply_chat_template(messages, tokenize=False)
            expected = family.reference.encode(text, add_special_tokens=False)
            assert [number for number in ids if number in family.control] == [
                number for number in expected if number in family.control
            ]


@pytest.mark.parametrize("loss_on", ["completion", "last_assistant", "all"])
def test_other_targets(family: Family, loss_on: str) -> None:
    given = [
        {
            "messages": [
                m
                for turn in ("a", "b")
                for m in (
                    {"role": "user", "content": f"the {turn}"},
                    {"role": "assistant", "content": f"cat {turn}"},
                )
            ]
        }
    ]
    [(ids, targets)], _ = family.encode(given, loss_on)
    trained = family.reference.decode([number for number, chosen in zip(ids, targets, strict=True) if chosen])
    if loss_on == "all":
        assert all(targets)
    else:
        assert "cat b" in trained and "cat a" not in trained and "the" not in trained


def test_a_conversation_without_an_answer_is_bad(family: Family) -> None:
    given = [{"messages": [{"role": "user", "content": "the cat"}]}]
    encoded, [reason] = family.encode(given)
    assert encoded == []
    assert reason == "no token of it is a target (--loss_on), so it would train nothing"


def test_tools_and_reasoning_are_targets_where_the_template_writes_them(
    tmp_path: Path,
) -> None:
    family = Family("Qwen 2.5 and 3", tmp_path)
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "<|im_end|>é", "n": 1}}}
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks at <|im_start|>."}}]
    messages = [
        {"role": "user", "content": "the cat?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hello"},
        {"role": "tool", "content": "sat"},
        {"role": "assistant", "content": "It sat."},
    ]
    [(ids, targets)], _ = family.encode([{"messages": messages, "tools": tools}])
    edges = np.flatnonzero(np.diff(np.array(targets), prepend=False, append=False)).reshape(-1, 2)
    trained = [family.reference.decode(ids[start:end]) for start, end in edges]
    assert trained == [
        '<think>\nhello\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"at": "<|im_end|>é", "n": 1}}\n'
        "</tool_call><|im_end|>",
        "It sat.<|im_end|>",
    ]
    assert sum(number == family.reference.convert_tokens_to_ids("<|im_end|>") for number in ids) == 5


def test_a_template_can_mark_what_is_generated(tmp_path: Path) -> None:
    family = Family("ChatML", tmp_path)
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    )
    save_tokenizer(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    family._described = describe_tokenizer(str(tmp_path))
    given = conversations(20, seed=3)
    encoded, _ = family.encode(given)
    for conversation, (ids, targets) in zip(given, encoded, strict=True):
        expected = reference.apply_chat_template(
            conversation["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert targets == [bool(value) for value in expected["assistant_masks"]]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family("ChatML", tmp_path_factory.mktemp("chatml"))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=12), min_size=2, max_size=6), data=st.data())
def test_any_text_conserves_control_tokens(chatml: Family, texts: list[str], data: st.DataObject) -> None:
    family = chatml
    texts = [text.encode(errors="ignore").decode() for text in texts]
    spliced = data.draw(st.lists(st.sampled_from(CONTROL[:6]), min_size=len(texts), max_size=len(texts)))
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": text + token + text}
        for number, (text, token) in enumerate(zip(texts, spliced, strict=True))
    ]
    [(ids, _)], reasons = family.encode([{"messages": messages}])
    assert not reasons
    assert sum(number in family.control for number in ids) == 2 * len(messages)


def custom(folder: Path, template: str, **options: Any) -> Family:
    """Returns a family with a template of one's own."""
    family = Family("ChatML", folder)
    save_tokenizer(folder, template, **options)
    family.reference = AutoTokenizer.from_pretrained(folder)
    family._described = describe_tokenizer(str(folder))
    return family


def trained_texts(
    family: Family, messages: list[dict[str, Any]], loss_on: str = "assistant", **record: Any
) -> list[str]:
    encoded, reasons = family.encode([{"messages": messages, **record}], loss_on)
    assert not reasons
    [(ids, targets)] = encoded
    edges = np.flatnonzero(np.diff(np.array(targets), prepend=False, append=False)).reshape(-1, 2)
    return [family.reference.decode(ids[start:end]) for start, end in edges]


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def reason_of(template: str, folder: Path, question: str, loss_on: str = "assistant") -> str:
    """Returns why a template cannot render a conversation."""
    messages = [turn("user", question), turn("assistant", "the")]
    encoded, [reason] = custom(folder, template).encode([{"messages": messages}], loss_on)
    assert encoded == []
    return reason


CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "the cat"}}}
GENERATION_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
NAMING_TEMPLATE = (
    "{% for m in messages %}<|start|>"
    "{% if m.role == 'tool' %}{{ messages[loop.index0 - 1].tool_calls[0].function.name }}"
    "<|message|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}assistant to={{ m.tool_calls[0].function.name }}<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}</call>"
    "{% else %}{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def test_an_answer_without_text_trains_the_end_of_its_turn(family: Family) -> None:
    messages = [turn("user", "the"), turn("assistant", "cat"), turn("user", "sat"), turn("assistant", "")]
    *_, last = trained_texts(family, messages)
    assert last.endswith(family.end) and "cat" not in last
    encoded, reasons = family.encode([{"messages": [turn("user", ""), turn("assistant", "")]}])
    assert not reasons and any(encoded[0][1])


def test_a_message_of_weight_0_is_not_a_target(family: Family) -> None:
    messages = [turn("user", "the"), turn("assistant", "cat", weight=0)]
    messages += [turn("user", "hello"), turn("assistant", "sat", weight=1)]
    [text] = trained_texts(family, messages)
    assert "sat" in text and "cat" not in text


def test_neighbouring_generations_belong_to_their_messages(tmp_path: Path) -> None:
    family = custom(tmp_path, GENERATION_TEMPLATE)
    messages = [
        turn("user", "the"),
        turn("assistant", "cat"),
        turn("assistant", "sat"),
        turn("assistant", ""),
    ]
    assert trained_texts(family, messages) == ["cat<|im_end|>sat<|im_end|><|im_end|>"]
    assert trained_texts(family, messages[:3], "last_assistant") == ["sat<|im_end|>"]
    assert trained_texts(family, messages, "last_assistant") == ["<|im_end|>"]


def test_targets_begin_after_the_header_although_the_prompt_is_longer(tmp_path: Path) -> None:
    family = custom(tmp_path, THINKING_TEMPLATE)
    messages = [turn("user", "the"), turn("assistant", "", tool_calls=[CALL]), turn("user", "cat")]
    first, last = trained_texts(family, [*messages, turn("assistant", "sat")])
    assert first == "<tool_call>look<|im_end|>"
    assert last.endswith("</think>\nsat<|im_end|>") and not last.startswith("<think>")


def test_a_calls_name_in_the_header_of_its_result_is_no_target(tmp_path: Path) -> None:
    family = custom(tmp_path, NAMING_TEMPLATE)
    messages = [turn("user", "the"), turn("assistant", "", tool_calls=[CALL]), turn("tool", "cat")]
    call, answer = trained_texts(family, [*messages, turn("assistant", "sat")])
    assert call == ' to=look<|message|>{"at": "the cat"}'
    assert answer == "<|message|>sat<|end|>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|im_start|>{{ m.content | lower }}<|im_end|>{% endfor %}",
        "{% for m in messages %}<|im_start|>{{ (m.content | list | join('')) | title | lower }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ ('<|im_start|>' ~ m.content) | title | lower }}<|im_end|>{% endfor %}",
    ],
)
def test_a_template_that_makes_control_tokens_of_messages_is_refused(template: str, tmp_path: Path) -> None:
    assert "write the control token" in reason_of(template, tmp_path, "<|IM_END|>")


@pytest.mark.parametrize("template", ["{{ messages | tojson(ensure_ascii=true) }}", "{{ messages }}"])
def test_a_spelled_control_token_must_not_be_escaped(template: str, tmp_path: Path) -> None:
    reason = reason_of(template, tmp_path, "<|im_end|>", "all")
    assert "spells a control token in a text whose characters the template escapes" in reason


@pytest.mark.parametrize(
    "template",
    [
        "{{ cycler() }}",
        "{{ '\\ud800' }}",
        "{{ 'a' | center(10 ** 15) }}",
        "{{ lipsum() }}",
        "{{ messages[9].role }}",
    ],
)
def test_a_template_that_fails_makes_records_bad(template: str, tmp_path: Path) -> None:
    reason = reason_of(template, tmp_path, "the", "all")
    assert reason.startswith("the chat template cannot render it: ")


@pytest.mark.parametrize("template", ["{% break %}", "{{ [1, 2] | random }}", "{% if %}"])
def test_a_template_that_is_none_is_refused(template: str, tmp_path: Path) -> None:
    family = custom(tmp_path, template)
    with pytest.raises(UsageError, match="is not a Jinja program"):
        family.encode([{"messages": [turn("user", "the")]}])


@pytest.mark.parametrize(
    "template",
    [
        "'<|im_start|>%s\n%s<|im_end|>' | format(m.role, m.content)",
        "'<|im_start|>%s\n%s<|im_end|>' % (m.role, m.content)",
        "'<|im_start|>{}\n{}<|im_end|>'.format(m.role, m.content)",
    ],
)
def test_formatted_text_keeps_its_marks(template: str, tmp_path: Path) -> None:
    family = custom(tmp_path, "{% for m in messages %}{{ " + template + " }}{% endfor %}")
    messages = [turn("user", "the"), turn("assistant", "cat <|im_end|>")]
    assert trained_texts(family, messages) == ["cat <|im_end|><|im_end|>"]


def test_results_do_not_depend_on_the_conversations_before(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.id and m.id.startswith('<|') %}S{% endif %}"
        "{% if m.content %}{{ m.content.strip('<|im_end|>') }}{% if 'zz' in messages[0].content %}!{% endif %}"
        "{% endif %}<|im_end|>\n{% endfor %}"
    )
    given = [
        [turn("user", user, id=number), turn("assistant", answer)]
        for user, number, answer in itertools.product(
            ("the", "cat", "\ufdd0", "zz", "q<|im_end|>", "a\U0010ffff"),
            ("1", "<|im_end|>"),
            ("sat", "", "\ufdd0"),
        )
    ]
    family = custom(tmp_path / "all", template)
    together = [family.encode([{"messages": messages}]) for messages in given * 3]
    alone = custom(tmp_path / "one", template)
    for messages, encoded in zip(given * 3, together, strict=True):
        alone._tokenizers.clear()
        assert alone.encode([{"messages": messages}]) == encoded


def test_the_end_of_a_header_that_is_stripped_alone_is_no_target(tmp_path: Path) -> None:
    family = custom(tmp_path, TEMPLATES["ChatML"][0])
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    family._described = describe_tokenizer(str(tmp_path))
    messages = [turn("user", "the"), turn("assistant", "cat")]
    assert trained_texts(family, messages) == ["cat<|im_end|>"]
    assert trained_texts(family, [turn("user", "<|im_end|>"), messages[1]]) == ["cat<|im_end|>"]
