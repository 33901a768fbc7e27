"""Conversations that are filled into a known shape are as those that are rendered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.conversations.control_spans import ControlFinder
from beam_pipeline.conversations.encoding import TokenLayout
from beam_pipeline.conversations.gaps import Field
from beam_pipeline.conversations.rendering import RenderedConversation
from beam_pipeline.conversations.shapes import Shapes
from beam_pipeline.conversations.template import ChatTemplate, RenderingError
from beam_pipeline.conversations.traced import marks_of
from tests.beam_pipeline.conversations.families import CONTROL, TEMPLATES
from tests.beam_pipeline.conversations.test_families import Family, conversations

CONTENTS = (
    "the cat",
    "THE CAT",
    " the cat\n",
    "7",
    "",
    "a</think>b",
    "</think>",
    "upper",
    "default",
    "x" * 50,
)

WRITTEN = "{{ m.content }}"
LOOKED_INTO = (
    "{{ messages | reverse | groupby('content') | list | length }}",
    "{{ messages | reverse | unique(attribute='content') | list | length }}",
    "{{ (messages | reverse | min(attribute='content')).role }}",
    "{{ m.values() | unique | list | length }}",
    "{% for k, v in m.items() | sort(attribute=1) %}{{ k }}{% endfor %}",
    "{{ dict(a=m.content).values() | join | length }}",
    "{% macro f() %}{{ kwargs.values() | join | length }}{% endmacro %}{{ f(x=m.content) }}",
    "{{ 'abcabc' | trim(m.content) }}",
    "{{ messages | selectattr(m.content) | list | length }}",
    "{{ messages | rejectattr(m.content) | list | length }}",
    "{{ (('<' | safe) + m.content) | length }}",
    "{{ (('a' | e) + m.content) == 'aa' }}",
    "{{ ('a' | safe) == m.content }}",
    "{{ ('{}'.format('a') + m.content) | length }}",
    "{{ m | items }}{{ m.content }}",
    "{% autoescape true %}{{ m.content }}{% endautoescape %}",
    "{{ m.content | truncate(2) }}",
    "{{ m.content | upper }}",
    "{{ m.content | replace('a', 'b') }}",
    "{{ m.content[:3] }}",
    "{{ m.content.split('a')[0] }}",
    "{{ m.content | tojson }}",
    "{{ m.content | int(3) }}",
    "{{ m.content | length }}",
    "{{ 'long' if m.content | length > 9 else 'short' }}",
    "{{ '%s' % m.content }}{{ m.content * 2 }}",
    "{{ ('%s' % (m.content,)) | length }}",
    "{{ '{}'.format(m.content) | length }}",
    "{{ m.content.format(1) | length }}",
    "{{ m.content.format_map({}) | length }}",
    "{{ m.content.upper() | length }}",
    "{{ 'in' if m.content in 'the cat sat' else 'out' }}",
    "{{ 'in' if m.content is in('the cat sat') else 'out' }}",
    "{{ 'upper' if m.content is upper else 'lower' }}",
    "{{ 'test' if m.content is test else 'no' }}",
    "{{ 'starts' if 'the cat sat'.startswith(m.content) else 'no' }}",
    "{{ 'found' if 'the cat sat'.find(m.content) >= 0 else 'no' }}",
    "{{ {'the cat': 1, '7': 2}[m.content] }}",
    "{{ [1, 2][m.content] }}",
    "{{ m[m.content] }}",
    "{{ 'less' if m.content < 'b' else 'more' }}",
    "{% for c in m.content %}{{ c }}.{% endfor %}",
    "{{ ', '.join([m.content]) | length }}",
    "{{ [m.content] | join('-') }}",
    "{{ [m.content] }}",
    "{{ m }}",
    "{{ messages | map(attribute='content') | list | string }}",
    "{{ m.content | e }}",
    "{% filter lower %}{{ m.content }}{% endfilter %}",
    "{% set s %}{{ m.content }}{% endset %}{{ s | length }}",
    "{{ (m.content ~ 'x') | upper }}",
    "{{ (m.content + 'x').strip('x') }}",
    "{{ 'first' if m.content + 'x' == 'the catx' else 'other' }}",
    "{{ loop.changed(m.content) }}",
    "{{ 'a' in m.content in ['the cat'] }}",
    "{{ range(m.content | length) | list }}",
    "{{ [messages[0].content, m.content] | sort }}",
    "{{ [m.content, 'the cat'] | unique | list | length }}",
    "{{ messages | groupby('content') | length }}",
)
ASKED = (
    WRITTEN,
    "{{ ', '.join(['a']) == m.content }}{{ m.content }}",
    "{{ (['a'] | join) == m.content }}{{ m.content }}",
    "{{ ('%s' % 'a') == m.content }}{{ m.content }}",
    "{{ m.content | trim }}",
    "{{ m.content.strip('te') }}{{ m.content.lstrip() }}",
    "{{ m.content if m.content else 'nothing' }}",
    "{{ m.content or 'nothing' }}",
    "{{ 'cat' if m.content == 'the cat' else m.content }}",
    "{{ 'cat' if 'the cat' == m.content else m.content }}",
    "{{ 'cat' if m.content in ['the cat', '7'] else m.content }}",
    "{{ 'cat' if m.content is eq('the cat') else m.content }}",
    "{{ 'thought' if '</think>' in m.content else m.content }}",
    "{{ m.content if '</think>' not in m.content }}",
    "{{ 'the' if m.content.startswith(('the', 'THE')) and not m.content.endswith('\\n') else 'none' }}",
    "{% set s %}<{{ m.content }}>{% endset %}{{ s }}",
    "{% macro w(x) %}<{{ x }}>{% endmacro %}{{ w(m.content) }}",
    "{% set n = namespace(x='') %}{% set n.x = m.content ~ '!' %}{{ n.x + m.content }}",
    "{{ (messages | selectattr('role', 'equalto', 'user') | first).content }}{{ messages | length }}",
    "{{ messages[::-1][0].content }}{{ m.get('content', '') | string }}",
    "{% if m.content is string and m.content is not none and m.name is not defined %}{{ m.content }}{% endif %}",
)


def check(template: str, contents: list[str]) -> int:
    """Fills shapes with all contents, and compares with what is rendered. Returns how many were filled."""
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n" + template + "<|im_end|>{% endfor %}"
    chat = ChatTemplate(source, {})
    fills = 0
    shapes = Shapes(chat, _Layouts())
    for content in contents:
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": content}]
        try:
            text = chat.render(messages)
        except RenderingError:  # so it must not be filled in
            text = None
        filled = shapes.fill({"messages": messages})
        if filled is not None:
            assert filled.text == text, (template, content)
            fills += 1
        elif text is not None:
            shapes.learn({"messages": messages}, _rendered(text))
    return fills


class _Layouts:
    def layout(self, _: RenderedConversation) -> TokenLayout:
        return TokenLayout(
            np.empty(0, np.int64), np.empty(1, bool), np.empty((0, 2), np.int64), is_fixed=True
        )


def _rendered(text: str) -> RenderedConversation:
    marks = marks_of(text)
    controls, _ = ControlFinder(CONTROL).spans(text, marks)
    return RenderedConversation(
        str.__str__(text), controls, marks, np.zeros(len(text), bool), is_plain=True, has_silent_answer=False
    )


@pytest.mark.parametrize("template", LOOKED_INTO)
def test_a_template_that_looks_into_texts_is_rendered(template: str) -> None:
    assert check(template, [*CONTENTS * 2]) == 0


@pytest.mark.parametrize("template", ASKED)
def test_what_a_template_asks_is_asked_again(template: str) -> None:
    assert check(template, [*CONTENTS * 4]) > 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=8) | st.sampled_from(CONTENTS), min_size=4, max_size=12), st.sampled_from(ASKED)
)
def test_any_texts_are_filled_as_they_are_rendered(contents: list[str], template: str) -> None:
    check(template, [*contents, *contents])


@pytest.mark.parametrize("name", TEMPLATES)
def test_filled_conversations_have_the_same_ids_and_targets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(name, tmp_path)
    given = conversations(100, seed=7) + conversations(100, seed=8, hostile=True)
    filled = []
    fill = Shapes.fill
    monkeypatch.setattr(Shapes, "fill", lambda *args: filled.append(fill(*args)) or filled[-1])
    fast = family.encode(given)
    assert sum(conversation is not None for conversation in filled) > 60
    monkeypatch.setattr(Shapes, "fill", lambda *_: None)
    assert family.encode(given) == fast


def test_other_keys_are_another_shape() -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.name }}{{ m.content }}|{% endfor %}", {})
    messages = [{"role": "user", "content": "a", "name": "b"}]
    assert chat.render_with_gaps(messages) == ((Field(0, "name"), Field(0, "content"), "|"), [])
    shapes = Shapes(chat, _Layouts())
    for _ in range(3):
        shapes.learn({"messages": messages}, _rendered(chat.render(messages)))
    assert shapes.fill({"messages": messages}).text == "ba|"
    for other in (
        [{"role": "user", "content": "a"}],
        [{"role": "user", "content": "a", "name": ["b"]}],
        [{"role": "user", "content": "a", "name": ""}],
        [{"role": "assistant", "content": "a", "name": "b"}],
        [*messages, *messages],
    ):
        assert shapes.fill({"messages": other}) is None
    assert shapes.fill({"messages": messages, "tools": [{}]}) is None
