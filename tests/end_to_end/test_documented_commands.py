"""The documented commands of `tokenmill` run as they are written; the others are listed here, with the reason."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from tests.end_to_end.test_documentation import PAGES, ROOT, commands

# A pattern of commands → why no test runs them as they are written.
NOT_RUN = {
    r"tokenmill \S+ .*(gs://|\$PROJECT)": (
        "needs Google Cloud; tests/beam_pipeline/runners/test_dataflow.py has a stand-in"
    ),
    r"tokenmill prepare .*JOB_SERVER": "needs a Flink cluster; make test-engines runs one",
    r"tokenmill browse ": "serves until Ctrl-C; tests/beam_pipeline/verbs/test_browse.py runs it",
    r"tokenmill-trainer launch": "needs Google Cloud; tests/tpu_trainer/verbs/test_launch.py has a stand-in",
    r"tokenmill-trainer compile-check": "needs the TPU's compiler; make test-tpu-check has it",
    r"tokenmill-trainer (plan|fit|evaluate|compare|export|fill-mask|generate)": (
        "needs TensorFlow and minutes; those of README and first-steps run below, tests/tpu_trainer has the verbs"
    ),
    r"make (setup|demo|test|release|fuzz|lint|docs-options|compile-check)\b": "runs the tests, or takes minutes",
    r"make test-(export|transformers|wheels|tpu-check|engines)\b": ("runs the tests, or takes minutes"),
    r"(\.venv|trainer/\.venv)/bin/(python -m pytest|ruff)": "runs the tests",
    r"(uv|docker|git) ": "changes the machine or a repository",
    r"gcloud ": "tests/deploy/test_documented_commands.py compares it with recorded flags",
    r"python pretrain_gpt.py": (
        "needs Megatron-LM; tests/beam_pipeline/formats/test_megatron_datasets.py compares the bytes"
    ),
    r"python demo/quality.py": "needs scikit-learn, which is no dependency; benchmarks/quality.py runs it",
    r"python -c ": "sets a variable of a page",
}
PROGRAMS = r"(tokenmill|tokenmill-trainer|make|uv|docker|git|gcloud|python|\.venv/\S+|trainer/\.venv/\S+)"

GOOD_TEXT = """The lines of an old map have faded, and nobody could read the names of its rivers.
We asked two librarians to compare it with later sheets that have been printed in Vienna.
Most villages lie on the left bank, while mills and forges stand further down the valley.
With a lens, letters appear where the paper was folded; some of them belong to a bridge.
Next year, a better camera will show whether anything is written below the coat of arms."""


def is_not_run(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in NOT_RUN)


def runnable() -> list[str]:
    """The commands of `tokenmill` that run here, each once."""
    documented_commands = {
        shlex.join(words) for page in PAGES for words in commands(page) if words[0] == "tokenmill"
    }
    return sorted(command for command in documented_commands if not is_not_run(command))


def shell_lines(page: Path) -> list[str]:
    """The lines of a page's blocks that begin with a program."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(rf"{PROGRAMS} ", line)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, run_successfully: Callable[..., Any]) -> Path:
    """A folder with all that the commands read, under the names that they use."""
    chooser = random.Random(0)
    words = ["".join(chooser.choices("aeioubcdfglmnprst", k=chooser.randint(1, 9))) for _ in range(400)]
    documents = [" ".join(chooser.choices(words, k=60)) for _ in range(300)]
    documents[7] = "Some text " * 30
    place = tmp_path_factory.mktemp("documented")
    for folder in ("corpus", "texts", "lib", "my", "first", "notes", "python"):
        (place / folder).mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    for name in ("articles.jsonl", "wiki.jsonl"):
        (place / name).write_text(lines)
    for number, text in enumerate(documents[:40]):
        (place / "python" / f"{number}.py").write_text(text)
    (place / "notes" / "note.md").write_text("\n\n".join(documents[:9]))
    (place / "corpus" / "a.jsonl").write_text(lines)
    (place / "gsm8k.jsonl").write_text(json.dumps({"question": documents[9], "answer": "42"}) + "\n")
    (place / "texts" / "a.txt").write_text("\n".join(documents) + "\n")
    (place / "texts" / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for number in range(4):
        (place / "lib" / f"{number}.py").write_text("\n".join(documents[number::4]))
    Dataset.from_dict({"text": documents}).save_to_disk(place / "my" / "dataset")
    corpus = ["--input", place / "corpus" / "*"]
    run_successfully("train-tokenizer", *corpus, "--vocab_size", "400", "--output", place / "tokenizer")
    for name in ("roberta-base", "gpt2", "MODEL", "first/tokenizer"):  # folders in place of names on the hub
        (place / name).symlink_to(place / "tokenizer")
    chat = place / "HuggingFaceTB" / "SmolLM2-135M-Instruct"
    shutil.copytree(place / "tokenizer", chat)
    (chat / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ sep_token or eos_token }}\n{% endfor %}"
    )
    (place / "chats").mkdir()
    messages = [{"role": "user", "content": words[0]}, {"role": "assistant", "content": words[1]}]
    (place / "chats" / "a.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    source = [*corpus, "--tokenizer", place / "tokenizer"]
    run_successfully(
        "prepare", *source, "--output", place / "dataset", "--shard_size", "50", "--max_length", "16"
    )
    (place / "first" / "dataset").symlink_to(place / "dataset")
    _make_curated(place, documents, run_successfully)
    return place


def _make_curated(place: Path, documents: list[str], run_successfully: Callable[..., Any]) -> None:
    """Makes what the commands of docs/curating.md read."""
    rows = [{"text": text, "url": f"http://a{number}.com"} for number, text in enumerate(documents)]
    rows += [
        {"text": f"{GOOD_TEXT}\nThe sheet has the number {number} in its corner."} for number in range(9)
    ]
    rows.append({"text": f"{GOOD_TEXT}\nWrite to map@example.com.", "lang": "en"})
    (place / "web").mkdir()
    (place / "web" / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "pages").mkdir()
    rows = [{"text": f"{GOOD_TEXT}\nThe page has the number {number} at its end."} for number in range(20)]
    (place / "pages" / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "blocked.txt").write_text("a3.com\n")
    page = (ROOT / "docs" / "curating.md").read_text(encoding="utf-8")
    (place / "my_filters.py").write_text(page.partition("# my_filters.py\n")[2].partition("```")[0])
    # Instead of demo/quality.py, which needs scikit-learn and a trained model.
    (place / "quality.py").write_text(
        "def good(texts, columns):\n    return {'quality': [len(text) for text in texts]}\n"
    )
    source = ["--input", place / "web" / "*.jsonl"]
    prepare = ["prepare", "--tokenizer", place / "tokenizer", "--output", place / "clean"]
    pages = ["--input", place / "web" / "*.jsonl", place / "pages" / "*.jsonl"]
    run_successfully(*prepare, *pages, "--filter", "gopher", "--dedup", "paragraphs")
    run_successfully(*prepare[:-1], place / "other", *source, "--filter", "pii")
    shutil.copy(place / "clean" / "removed" / "unit-000000.parquet", place / "restore.parquet")
    measures = "gopher,gopher_repetition,fineweb,language,pii"
    run_successfully("annotate", *source, "--measure", measures, "--output", place / "attributes")


@pytest.mark.parametrize("command", runnable())
def test_the_command_works_as_it_is_written(
    command: str,
    place: Path,
    run_successfully: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in place.iterdir():  # a folder for each command, since many write to the same output
        if path.name == "first":
            (tmp_path / "first").mkdir()
            for entry in path.iterdir():
                (tmp_path / "first" / entry.name).symlink_to(entry)
        else:
            (tmp_path / path.name).symlink_to(path)
    _, verb, *words = shlex.split(command.replace("$LIB", str(tmp_path / "lib")))
    if "--output" in words and (output := tmp_path / words[words.index("--output") + 1]).is_symlink():
        output.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_successfully(verb, *itertools.takewhile(lambda word: word != ">", words))


# Appended to the documented `fit`, which takes minutes.
FEWER_STEPS = ["--train.steps", "2", "--schedule.warmup_steps", "1"]


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        pytest.param("README.md", ".", id="README"),
        pytest.param("docs/first-steps.md", "first", marks=pytest.mark.wide, id="first-steps"),
    ],
)
def test_training_works_as_it_is_written_with_fewer_steps(
    page: str,
    folder: str,
    place: Path,
    run_successfully: Callable[..., Any],
    trainer_python: Path,
    tmp_path: Path,
) -> None:
    for name in ("demo", "trainer"):
        (tmp_path / name).symlink_to(ROOT / name)
    run_successfully(
        *("prepare", "--input", place / "corpus" / "*", "--tokenizer", place / "tokenizer", "--append_eos"),
        *("--max_length", "128", "--splits", "train=0.9,validation=0.1"),
        *("--output", tmp_path / folder / "dataset"),
    )
    training_commands = [words for words in commands(ROOT / page) if words[0] == "tokenmill-trainer"]
    assert [verb for _, verb, *_ in training_commands if verb != "evaluate"] == ["fit", "export", "generate"]
    for program, verb, *words in training_commands:
        arguments = [*words, *FEWER_STEPS] if verb == "fit" else words
        done = subprocess.run(
            [trainer_python.with_name(program), verb, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{program} {verb}: {done.stderr}"
    assert done.stdout.strip()  # of generate


def test_every_command_is_run_or_listed_with_the_reason() -> None:
    run, documented_commands = set(runnable()), set()
    for page in PAGES:
        for words in commands(page):
            assert shlex.join(words) in run or is_not_run(" ".join(words)), f"{page.name}: {' '.join(words)}"
            documented_commands.add(" ".join(words))
        for line in shell_lines(page):
            is_program = re.match(r"tokenmill|python -m (beam_pipeline|tpu_trainer) ", line)
            assert is_program or is_not_run(line), f"{page.name}: {line}"
            documented_commands.add(line)
    for pattern in NOT_RUN:
        assert pattern.startswith("python -c") or any(
            re.match(pattern, command) for command in documented_commands
        ), pattern


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"
