"""The demo's default corpus: English prose from a standard library, always the same."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from demo.corpus import prose, write_corpus

TOPICS = """\
topics = {'while': 'The while statement\\n===================\\n\\nIt is used for repeated execution.\\n',
 'assert': 'Assert statements\\n*****************\\n\\nThey are a convenient way\\nto insert debugging assertions.\\n'}
"""

MODULE = '''\
"""The first module says what it is for.

    >>> code(1) is left out of the text

It goes on after an example,
over two lines.
"""
raise SystemExit("a module must never be imported")

class Thing:
    """It is used for repeated execution."""

    def method(self):
        """Return a new thing made of this one."""

    async def twice(self):
        """Return a new thing made of this one."""

def grammar():
    """expr ::= term (("+" | "-") term)* | <nothing>"""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of two topics, a licence and three modules, one of them a test."""
    folder = tmp_path / "lib"
    for name, content in {
        "pydoc_data/topics.py": TOPICS,
        "LICENSE.txt": "This licence is granted to everyone.\n",
        "package/one.py": MODULE,
        "test/test_one.py": '"""The docstring of a test is left out."""',
        "site-packages/other.py": '"""What is installed beside the library is left out."""',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_documents_are_prose_in_a_fixed_order_each_once(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "corpus.jsonl"
    count, size = write_corpus(path, library)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["source"], line["text"]) for line in lines] == [
        ("topic assert", "They are a convenient way to insert debugging assertions."),
        ("topic while", "It is used for repeated execution."),
        ("LICENSE.txt", "This licence is granted to everyone."),
        (
            "package/one.py:1",
            "The first module says what it is for.\n\nIt goes on after an example, over two lines.",
        ),
        ("package/one.py:13", "Return a new thing made of this one."),
    ]
    assert count == len(lines)
    assert size == sum(len(line["text"].encode()) for line in lines)
    assert [entry.name for entry in path.parent.iterdir()] == ["corpus.jsonl"]


def test_a_module_that_cannot_be_parsed_leaves_no_corpus(library: Path, tmp_path: Path) -> None:
    (library / "broken.py").write_text("def broken(:\n")
    with pytest.raises(SyntaxError, match=r"broken\.py"):
        write_corpus(tmp_path / "corpus.jsonl", library)
    assert not (tmp_path / "corpus.jsonl").exists()


@pytest.mark.parametrize(
    "paragraph",
    [
        ">>> print('some words in an example of code')",
        "x = {**a, **b} | f(c)[0] @ d // e; y <<= 2 ** 10 & 0xFF",
        "Too few words.",
        "=====================",
    ],
)
def test_what_is_no_prose_is_left_out(paragraph: str) -> None:
    assert prose(f"These words are kept, all of them.\n\n{paragraph}") == "These words are kept, all of them."


def test_this_python_carries_enough_to_learn_from(tmp_path: Path) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    count, size = write_corpus(tmp_path / "corpus.jsonl", library)
    assert count > 3000
    assert size > 1_000_000
