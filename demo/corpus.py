"""`python -m demo.corpus OUT.jsonl`: English prose that every CPython installation carries, a document per line.

Three sources, in this order: the language reference as `pydoc` shows it, Python's licence, and the docstrings of the
standard library's modules, which are parsed and never imported. Only paragraphs of prose are kept: no code, no
tables, no grammar. Documents that are equal are kept once. The result is the same on every run of the same Python.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_BLANK_LINES = re.compile(r"\n\s*\n")
_WORD = re.compile(r"\b[A-Za-z]+\b")
_OF_PROSE = re.compile(r"[A-Za-z0-9\s.,;:'\"()\-]")
_LEAST_WORDS = 4
_LEAST_PROSE = 0.92  # of a paragraph's characters


def prose(text: str) -> str:
    """The paragraphs of `text` that are prose, each on one line, with an empty line between them."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in _BLANK_LINES.split(inspect.cleandoc(text)))
    return "\n\n".join(paragraph for paragraph in paragraphs if _is_prose(paragraph))


def _is_prose(paragraph: str) -> bool:
    if paragraph.startswith(">>>") or len(_WORD.findall(paragraph)) < _LEAST_WORDS:
        return False
    return len(_OF_PROSE.findall(paragraph)) >= _LEAST_PROSE * len(paragraph)


def documents(library: Path) -> Iterator[tuple[str, str]]:
    """The documents of a standard library.

    Args:
      library: its folder.

    Yields:
      (where the text is from, the text), each text once.

    Raises:
      SyntaxError: where a module is not written in the Python that runs this.
    """
    seen: set[str] = set()
    for source, text in _texts(library):
        kept = prose(text)
        if kept and kept not in seen:
            seen.add(kept)
            yield source, kept


def _texts(library: Path) -> Iterator[tuple[str, str]]:
    module = ast.parse((library / "pydoc_data" / "topics.py").read_bytes())
    topics = ast.literal_eval(module.body[-1].value)  # the file is one assignment: topics = {name: text}
    for name in sorted(topics):
        yield f"topic {name}", topics[name]
    for licence in sorted(library.glob("LICENSE*")):
        yield licence.name, licence.read_text(encoding="utf-8")
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if _LEFT_OUT.isdisjoint(name.parts):
            yield from _docstrings(path, name.as_posix())


def _docstrings(path: Path, name: str) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in the library's own strings
        tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node)
            if text:
                yield f"{name}:{getattr(node, 'lineno', 1)}", text


def write_corpus(path: Path, library: Path) -> tuple[int, int]:
    """Writes the documents as JSON lines with the keys `source` and `text`; the file is there whole or not at all.

    Returns:
      How many documents there are, and the bytes of their text in UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    count = size = 0
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        for source, text in documents(library):
            file.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
            count, size = count + 1, size + len(text.encode())
    temporary.replace(path)
    return count, size


def main() -> None:
    """Writes the corpus of the running Python."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.corpus", description="Writes a corpus of English prose."
    )
    parser.add_argument("output", type=Path, metavar="OUT.jsonl", help="file to write")
    path = parser.parse_args().output
    library = Path(sysconfig.get_paths()["stdlib"])
    count, size = write_corpus(path, library)
    print(f"{count:,} documents, {size / 1e6:.1f} MB of English prose from {library}: {path}")


if __name__ == "__main__":
    main()
