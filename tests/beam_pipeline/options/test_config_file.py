"""Options in YAML files: `--config` and `--print_config`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline import __main__
from beam_pipeline.options.command_line import config_yaml, parse
from beam_pipeline.options.option_fields import Option, options_of
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.verbs import VERBS
from beam_pipeline.support.errors import UsageError

NEEDED = "input: a\ntokenizer: t\noutput: o\n"


def parse_file(text: str | bytes, *argv: str, folder: Path, verb: str = "prepare") -> Any:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return parse(VERBS[verb], ["--config", str(path), *argv])


def test_a_file_stands_for_a_command_line(tmp_path: Path) -> None:
    text = (
        "input: [a, 'b*']\ntokenizer: t\noutput: o\nmax_length: 64\nmax_bad_ratio: 1e-3\nno-attention-mask: true\n"
        "resume: no\nsplits: train=0.5,test=0.5\nrunner: DirectRunner\nexperiments: [x, y]\nsave_main_session: true\n"
    )
    argv = [
        "--input",
        "a",
        "b*",
        "--tokenizer",
        "t",
        "--output",
        "o",
        "--max_length",
        "64",
        "--no_attention_mask",
    ]
    argv += ["--max_bad_ratio", "0.001", "--splits", "train=0.5,test=0.5"]
    beam = ["--runner=DirectRunner", "--experiments=x", "--experiments=y", "--save_main_session"]
    assert parse_file(text, folder=tmp_path) == parse(PrepareConfig, [*argv, *beam])


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    text = NEEDED + "max_length: 64\nno_attention_mask: true\nresume: true\nshard_size: 5\nproject: p\n"
    argv = ["--max_length", "32", "--attention_mask", "--no_resume", "--num_shards", "2", "--project", "q"]
    config, beam_args = parse_file(text, *argv, folder=tmp_path)
    assert (config.max_length, config.attention_mask, config.resume) == (32, True, False)
    assert (config.shard_size, config.num_shards, beam_args) == (None, 2, ["--project", "q"])
    assert parse_file("dataset: o\n", "p", folder=tmp_path, verb="verify").config.dataset == "p"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_lenght: 64", "unknown option --max_lenght: .* did you mean --max_length[?]"),
        ("vocab_size: 64", "unknown option --vocab_size: neither this verb nor Beam has it"),
        ("max-length: 64\nmax_length: 64", "max_length is already set in .*:4; remove one"),
        ("config: b.yaml", "unknown option --config: neither this verb nor Beam has it; see --help"),
        ("runer: x", "unknown option --runer: .* did you mean --runner[?]"),
        ("packing: bestfit", "--packing bestfit: must be .*; did you mean best_fit[?]"),
        ("max_length: 64.0", "--max_length 64.0: must be a whole number"),
        ("max_length: true", "--max_length true: must be a whole number"),
        ("max_length: many", "--max_length many: must be a whole number"),
        ("max_length:", "--max_length null: must be a whole number"),
        ("max_length: 3", "--max_length 3: must be from 8 to"),
        ("max_length: [64]", r"--max_length \[64\]: must be a whole number"),
        ("resume: 'no'", "--resume no: must be true or false"),
        ("resume: 1", "--resume 1: must be true or false"),
        ("text_key: no", "--text_key false: must be text; write it in quotes"),
        ("text_key: 12", "--text_key 12: must be text; write it in quotes"),
        ("splits: 0.5", "--splits 0.5: must be text; write it in quotes"),
        ("mix: a*1", "--mix: not allowed with --input"),
        ("project: null", "--project: options of Beam cannot be false or null"),
        ("max_length: {a: 1}", "max_length: must be a value or a list of values"),
        ("max_length: [[64]]", "max_length: must be a value or a list of values"),
        ("? [a]\n: b", "a key is not the name of an option"),
        ("\"\\e[31m\\0\": 1", ".*unknown option --"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_with_its_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_file(NEEDED + line, folder=tmp_path)
    assert re.match(f"{tmp_path}/run.yaml:[45]: {message}", str(raised.value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input: a\ninput: b\n", "line 2: 'input' is already set in line 1"),
        ("input: !!python/object/apply:os.system ['touch owned']\n", "without a tag"),
        ("input: !!python/name:os.system x\n", "has the tag"),
        ("!!python/object:os.x {input: a}\n", "is not a mapping"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "b: must be a value or a list of values"),
        ("a: &a {k: v}\nb:\n  <<: [*a, *a]\n", "a: must be a value or a list of values"),
        ("[" * 100_000, "is not valid YAML"),
        ("input: *.txt\n", "is not valid YAML: while scanning an alias"),
        ("- a\n", "is not a mapping"),
        ("a: b\n---\na: b\n", "is not valid YAML"),
        (b"a: \xff\n", "is not UTF-8"),
        (b"a: \0\n", "is not valid YAML"),
        ("# 10 MB\n" * (10 << 17), "has more than 1,048,576 bytes"),
    ],
)
def test_hostile_files_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"run.yaml.*{re.escape(message)}"):
        parse_file(text, folder=tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("path", ["missing.yaml", ".", "/dev/zero"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^--config {re.escape(path)}: (cannot be read|has more than)"):
        parse(PrepareConfig, ["--config", path])


def _arguments(option: Option) -> st.SearchStrategy[list[str]]:
    """Returns valid arguments for an option, of hostile content where any text is allowed."""
    flag = f"--{option.flag}"
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text[0] != "-")
    special = {
        "encoding": "cp1252",
        "splits": "a=0.25,b=0.75",
        "prices": "vcpu_hour=1e-2",
        "text_separator": "\\n",
    }
    if option.kind is bool:
        return st.just([flag])
    if option.choices:
        values = st.sampled_from(option.choices)
    elif option.kind is int:
        values = st.integers(max(16, (option.bounds or (0,))[0]), 1000).map(str)
    elif option.kind is float:
        values = st.floats(0, 1).map(str)
    elif option.name in special:
        values = st.just(special[option.name])
    else:
        values = texts
    return st.lists(values, min_size=1, max_size=3 if option.is_list else 1).map(lambda items: [flag, *items])


_OPTIONS = [
    option
    for option in options_of(PrepareConfig)
    if option.exclusive not in ("source", "splits")
    and not option.needs
    and option.flag not in ("resume", "ids_column")
]


@given(st.data())
def test_a_printed_file_reproduces_the_command_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(_OPTIONS), unique=True))
    argv = ["--experiments", "1e5", "--experiments=no", "--save_main_session"]
    for option in [*chosen, *(each for each in options_of(PrepareConfig) if each.name == "input")]:
        argv += data.draw(_arguments(option))
    argv += ["--tokenizer=t", "--output=o"]
    try:
        expected = parse(PrepareConfig, argv)
    except UsageError:  # the options contradict each other
        return
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    for ascii_only in (False, True):
        path.write_text(config_yaml(PrepareConfig, argv, ascii_only=ascii_only), encoding="utf-8")
        parsed = parse(PrepareConfig, ["--config", str(path)])
        assert parsed.config == expected.config
        assert parsed.beam_args == ["--experiments=1e5", "--experiments=no", "--save_main_session"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_its_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = ["--input", "ä*"]
    first = {"prepare": [*corpus, "--tokenizer", "t"], "completion": ["zsh"]}
    first |= dict.fromkeys(("train-tokenizer", "annotate"), corpus)
    needed = list(first.get(verb, ["data"]))
    needed += {"convert": ["--output_format", "parquet"], "follow": ["--project", "p", "--region", "r"]}.get(
        verb, []
    )
    needed += ["--output", "o"] if verb in ("prepare", "annotate", "train-tokenizer", "convert") else []
    assert __main__.run(verb, [*needed, "--print-config"]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    assert parse(VERBS[verb], ["--config", str(tmp_path / "run.yaml")]) == parse(VERBS[verb], needed)
