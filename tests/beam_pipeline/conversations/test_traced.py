"""Traced strings: every operation gives the text that str gives, and the marks of its characters."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.conversations.template import ChatTemplate
from beam_pipeline.conversations.traced import Traced, concat, marks_of, message_mark, trace

TEXT = st.text("ab \n.é", max_size=12)

# Each gets a string, and returns a string or a sequence of them.
OPERATIONS = [
    lambda s: s.strip(),
    lambda s: s.lstrip("a"),
    lambda s: s.rstrip(" \n"),
    lambda s: s.split(),
    lambda s: s.split("ab"),
    lambda s: s.split("a", 1),
    lambda s: s.rsplit(None, 1),
    lambda s: s.splitlines(),
    lambda s: s.splitlines(keepends=True),
    lambda s: s.partition("b"),
    lambda s: s.rpartition("b"),
    lambda s: s.replace("a", "xyz"),
    lambda s: s.replace("b", "", 1),
    lambda s: s.removeprefix("a"),
    lambda s: s.removesuffix("b"),
    lambda s: s[1:],
    lambda s: s[::-1],
    lambda s: s[-1:],
    lambda s: list(s),
    lambda s: s.upper(),
    lambda s: s.title(),
    lambda s: s + "t",
    lambda s: "t" + s,
    lambda s: s * 2,
    lambda s: s.join(["1", "2"]),
]


@pytest.mark.parametrize("number", range(len(OPERATIONS)))
@given(text=TEXT)
def test_operations_give_what_str_gives_with_the_marks_of_the_characters(number: int, text: str) -> None:
    # Each character is from a message of its own, so its mark tells where it was.
    traced = Traced(text, "".join(map(message_mark, range(len(text)))))
    result, expected = OPERATIONS[number](traced), OPERATIONS[number](text)
    parts, expected_parts = ([result], [expected]) if isinstance(result, str) else (result, expected)
    assert list(parts) == list(expected_parts)
    last = -1
    for part in parts:
        assert isinstance(part, Traced)
        assert len(part.marks) == len(part)
        for character, mark in zip(str.__str__(part), marks_of(part).tolist(), strict=True):
            if mark:
                assert text[mark - 1].lower() == character.lower()
                if number not in (16, 23, 24):  # those that turn around or repeat
                    assert mark - 1 > last
                    last = mark - 1


@pytest.mark.parametrize(
    "template",
    [
        "{{ m.content }}",
        "{{ '<' ~ m.content ~ '>' }}",
        "{{ '<' + m.content | trim + '>' }}",
        "{{ [m.content, 'x'] | join(', ') }}",
        "{{ ', '.join([m.content, 'x']) }}",
        "{{ '%s!' | format(m.content) }}",
        "{{ '%s!' % m.content }}",
        "{% set text %}{{ m.content }}{% endset %}{{ text }}",
        "{% macro show(x) %}{{ x }}{% endmacro %}{{ show(m.content) }}",
        "{{ '{}!'.format(m.content) }}",
        "{{ m.content | indent(2) }}",
        "{{ m.content | title | lower }}",
        "{{ m.content | wordwrap(1) }}",
        "{{ m.content | center(9) }}",
        "{{ m.content | e }}",
        "{{ m.content | tojson }}",
        "{{ {'a': m.content} | tojson(indent=2) }}",
        "{{ m | string if false else m.content | upper | lower }}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{{ m.content.split('b')[0] }}b",
        "{{ m.content if m.content is string else '' }}",
    ],
)
def test_templates_keep_the_marks(template: str) -> None:
    source = "{% for m in messages %}" + template + "{% endfor %}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a\nb"}]
    text = ChatTemplate(source, {}).render(messages)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    if "tojson" not in template:  # whose filter is transformers' here
        assert text == environment.from_string(source).render(messages=messages)
    marks = marks_of(text)
    assert marks[str.__str__(text).index("a")] == 1


def test_a_default_is_the_templates() -> None:
    source = "{{ messages[0].role | default(messages[0].content) }}{{ messages[0].name | default('x') }}"
    text = ChatTemplate(source, {}).render([{"role": "user", "content": "a"}])
    assert text == "userx"
    assert not marks_of(text).any()


def test_keys_and_values_of_a_tree_are_traced() -> None:
    value = trace({"a": ["b", 1, None]}, message_mark(4))
    text = concat([*value, *value["a"][:1]])
    assert text == "ab"
    assert marks_of(text).tolist() == [5, 5]
