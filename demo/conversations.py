"""Writes conversations about the functions of Python's standard library, which the demo's model is fine-tuned on.

    python demo/conversations.py write FOLDER
    python demo/conversations.py show answers.jsonl

`FOLDER/train.jsonl` asks for the module of each function in several ways. One way for each function is left to
`FOLDER/held_out.jsonl`: no text of these was trained on.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_QUESTIONS = (
    "Which module has the function {name}?",
    "Where is {name}?",
    "How do I import {name}?",
    "I need {name}. What do I import?",
)
_SHOWN = 4


def functions() -> dict[str, str]:
    """Returns the module of each public function that only one module of the library has."""
    library = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, str]] = []
    for path in sorted(library.glob("*.py")):
        if not path.stem.startswith("_"):
            names = sorted(set(_public_functions(path)))
            found += [(name, path.stem) for name in names]
    times = Counter(name for name, _ in found)
    return {name: module for name, module in found if times[name] == 1}


def _public_functions(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node):
            yield node.name


def write(folder: Path) -> None:
    """Writes both files."""
    trained, held_out = [], []
    for number, (name, module) in enumerate(functions().items()):
        for way, question in enumerate(_QUESTIONS):
            asked, answer = question.format(name=name), f"from {module} import {name}"
            if way == number % len(_QUESTIONS):
                held_out.append({"text": asked, "actual": answer})
            else:
                trained.append({"prompt": asked, "completion": answer})
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("train", trained), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def show(answers: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines to print: some answers, and how many are right."""
    for answer in answers[:: max(1, len(answers) // _SHOWN)][:_SHOWN]:
        yield f"\n    {answer['text']}\n    → {answer['continuation'].strip()}"
    right = sum(answer["continuation"].strip() == answer["actual"] for answer in answers)
    yield f"\n{right:,} of {len(answers):,} answers are right, to questions that it was not trained on."


def main(argv: list[str]) -> None:
    """Runs `write` or `show`."""
    if argv[0] == "write":
        write(Path(argv[1]))
    else:
        answers = [json.loads(line) for line in Path(argv[1]).read_text(encoding="utf-8").splitlines()]
        print("\n".join(show(answers)))


if __name__ == "__main__":
    main(sys.argv[1:])
