"""The command `tokenmill`: its help, its reference page, and what imports they cost."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import __main__, __version__
from beam_pipeline.options import options_page
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.option_fields import TOPICS, options_of
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.verbs import VERBS
from beam_pipeline.support.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.executable).with_name("tokenmill")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert __main__.run(verb, ["--help"]) == 0
    return capsys.readouterr().out


def test_the_installed_command_lists_every_verb_in_a_line() -> None:
    without_verb, with_help = run(str(INSTALLED)), run(str(INSTALLED), "--help")
    assert (without_verb.returncode, with_help.returncode) == (2, 0)
    assert without_verb.stderr == with_help.stdout
    assert with_help.stdout.startswith("usage: tokenmill VERB")
    lines = dict(re.findall(r"^  (\S+) +(.+)$", with_help.stdout, re.MULTILINE))
    assert list(lines) == list(VERBS)
    assert all(len(line) < 120 for line in with_help.stdout.splitlines())


def test_a_word_that_is_not_a_verb_is_named_with_the_verb_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, suggestion in (
        ("prepair", "'prepair' is not a verb; did you mean prepare?"),
        ("zzz", "'zzz' is not a verb"),
    ):
        monkeypatch.setattr("sys.argv", ["tokenmill", word])
        assert __main__.main() == 2
        assert capsys.readouterr().err.endswith(f"{suggestion}\n")
    monkeypatch.setattr("sys.argv", ["tokenmill", "--version"])
    assert __main__.main() == 0
    assert capsys.readouterr().out == f"tokenmill {__version__}\n"


def test_a_misspelt_option_is_named_with_the_option_that_was_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    required_options = ["--input", "a", "--tokenizer", "t", "--output", "o"]
    for verb, argv, suggestion in (
        (
            "prepare",
            [*required_options, "--max_lenght", "9"],
            "--max_lenght: .*; did you mean --max_length[?]; see --help",
        ),
        ("verify", ["o", "--zzz", "x"], "--zzz: neither this verb nor Beam has it; see --help"),
    ):
        assert __main__.run(verb, argv) == 2
        assert re.search(f"unknown option {suggestion}", capsys.readouterr().err)


def test_python_m_names_itself_in_its_usage() -> None:
    result = run(sys.executable, "-m", "beam_pipeline", "verify", "--help")
    assert result.stdout.startswith("usage: python -m beam_pipeline verify OUT [options]")


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from beam_pipeline.__main__ import run; from beam_pipeline.options.verbs import VERBS; "
        "[run(verb, ['--help']) for verb in VERBS]; "
        "print({'apache_beam', 'tensorflow', 'transformers', 'numpy', 'jinja2'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", code).stdout.endswith("set()\n")


@pytest.mark.parametrize("arguments", [["verify"], ["report"], ["inspect", "--record", "train:0:0"]])
def test_a_local_dataset_is_read_without_beam(arguments: list[str], dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "out")  # report writes into it
    verb, *options = arguments
    code = (
        f"import sys; from beam_pipeline.__main__ import run; assert run({verb!r}, {[str(copy), *options]}) == 0; "
        "print({'apache_beam', 'tensorflow', 'transformers', 'pandas', 'google.api_core'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", code).stdout.endswith("set()\n")


def test_text_is_prepared_without_beam_and_arrow(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "one.jsonl"
    source.write_text('{"text": "some words"}\n' * 100)
    options = {"input": source, "tokenizer": tokenizer_folder, "max_length": 32, "output": tmp_path / "out"}
    words = [f"--{name}={value}" for name, value in options.items()]
    code = (
        f"import sys; from beam_pipeline.__main__ import run; assert run('prepare', {words}) == 0; "
        "print({'apache_beam', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", code).stdout.endswith("set()\n")


def test_beam_is_imported_without_unused_libraries_which_can_be_imported_later() -> None:
    code = (
        "import sys; from beam_pipeline.support.lean_beam import import_beam; import_beam(); import apache_beam; "
        "print({'pandas', 'pymongo', 'google.cloud.bigquery'} & set(sys.modules)); "
        "from apache_beam.io.filesystems import FileSystems; print(FileSystems.get_filesystem('gs://a/b').scheme()); "
        "import pandas, apache_beam.io.gcp.bigquery; print(pandas.__name__)"
    )
    result = run(sys.executable, "-c", code)
    assert (result.stdout, result.stderr) == ("set()\ngs\npandas\n", "")


def test_a_run_searches_for_no_garbage_at_its_end() -> None:
    code = (
        "import atexit, gc; from beam_pipeline.__main__ import run; "
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000)); run('verify', ['--help'])"
    )
    assert run(sys.executable, "-c", code).stdout.endswith("\nTrue\n")


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_every_option_and_explains_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(verb, capsys).split())
    for option in options_of(VERBS[verb]):
        assert (option.metavar if option.positional else f"--{option.flag}") in text
        assert option.help.endswith(".")
        assert " ".join(option.help.split()[:4]) in text


@pytest.mark.parametrize(("verb", "topics"), [("prepare", TOPICS[1:]), ("train-tokenizer", None)])
def test_help_groups_options_by_topic_after_three_examples(
    verb: str, topics: tuple[str, ...] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(verb, capsys)
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Examples", "options", *(topics or ("input", "tokenizer", "output", "running"))]
    assert "One of --input, --mix, --dataset_name is required." in text


@pytest.mark.parametrize("verb", ["train-tokenizer", "prepare", "inspect"])
def test_the_examples_in_the_help_are_valid_commands(verb: str) -> None:
    lines = re.findall(r"^ +tokenmill (.+)$", inspect.cleandoc(VERBS[verb].__doc__), re.MULTILINE)
    assert len(lines) == (4 if verb == "inspect" else 3)
    for line in lines:
        words = shlex.split(line)
        assert words[0] == verb
        _, unknown_options = parse(VERBS[verb], words[1:])
        assert unknown_options == []


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == options_page.page(), (
        "run: make docs-options"
    )


def test_the_reference_page_tells_which_options_belong_to_the_fingerprint() -> None:
    prepare = options_page.page().partition("\n## prepare\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(--\w+).*\| (✓)? \|$", prepare, re.MULTILINE))
    assert len(rows) == len(options_of(PrepareConfig))
    without = {"dataset_cache", "max_bad_ratio", "engine", "output", "analyze", "overwrite", "resume", "wait"}
    without |= {"language_model", "url_block_list", "attributes", "restore"}  # their content has an influence
    without |= {"chat_template", "estimate", "prices", "skip_memory_check", "json", "quiet", "track"}
    without |= {"decontaminate", "dry_run"}  # the content of the benchmarks does belong to it
    assert {name.removeprefix("--") for name, mark in rows.items() if not mark} == without


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--max_length", "0"], "--max_length 0: must be from 8 to 1048576"),
        (["--max_bad_ratio", "1.5"], "--max_bad_ratio 1.5: must be from 0 to 1"),
        (["--num_shards", "0"], "--num_shards 0: must be from 1 to 100000000"),
        (["--overwrite", "--resume"], "--overwrite and --resume contradict each other"),
        (["--no_attention_mask", "--packing", "pad"], "--no_attention_mask with --packing pad"),
        (["--split", "a b"], "split 'a b': is not a valid name"),
        (["--splits", "a=0.5"], "the shares add up to 0.5; they must add up to 1"),
    ],
)
def test_wrong_values_are_named(argv: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        parse(PrepareConfig, ["--input", "a", "--tokenizer", "t", "--output", "o", *argv])


@pytest.mark.parametrize(
    ("verb", "argv", "name"),
    [
        ("prepare", ["--input", "a", "--tokenizer", "t", "--output", ""], "--output"),
        ("prepare", ["--input", "a", "--tokenizer", "", "--output", "o"], "--tokenizer"),
        ("prepare", ["--input", "a", "", "--tokenizer", "t", "--output", "o"], "--input"),
        ("train-tokenizer", ["--input", "a", "--output", ""], "--output"),
        *((verb, [""], "OUT") for verb in ("verify", "inspect", "analyze", "report")),
    ],
)
def test_an_empty_path_is_not_taken_for_the_current_folder(verb: str, argv: list[str], name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: must not be empty$"):
        parse(VERBS[verb], argv)


def test_unknown_options_are_left_to_beam_and_not_abbreviated() -> None:
    required_options = ["--input", "a", "--tokenizer", "t", "--output", "o"]
    _, beam_options = parse(PrepareConfig, [*required_options, "--runner", "DirectRunner"])
    assert beam_options == ["--runner", "DirectRunner"]
    with pytest.raises(UsageError, match=r"unknown option --max_len: .* did you mean --max_length"):
        parse(PrepareConfig, [*required_options, "--max_len", "9"])
