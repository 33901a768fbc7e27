"""The spelling of a command line: hyphens, what was meant by a misspelt word, and what is reported first."""

from __future__ import annotations

import re

import pytest

from beam_pipeline import __main__
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.verbs import VERBS
from beam_pipeline.support.errors import UsageError

NEEDED = ["--input", "a", "--tokenizer", "t", "--output", "o"]


def error_of(verb: str, *argv: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse(VERBS[verb], argv)
    return str(raised.value)


def test_options_are_the_same_with_hyphens_and_with_underscores() -> None:
    words = [
        "--max-length=64",
        "--on-bad-record",
        "skip",
        "--no-attention-mask",
        "--job-name",
        "a-b",
        "--save-main-session",
    ]
    expected = parse(
        PrepareConfig, [*NEEDED, *(re.sub(r"(?<=\w)-", "_", word) for word in words[:-2]), *words[-2:]]
    )
    parsed = parse(PrepareConfig, [*NEEDED, *words])
    assert parsed.config == expected.config
    assert (parsed.config.max_length, parsed.config.attention_mask) == (64, False)
    assert parsed.beam_args == ["--job_name", "a-b", "--save_main_session"]


def test_inputs_that_are_named_one_by_one_are_all_read() -> None:
    assert parse(PrepareConfig, ["--input", "b", "c", *NEEDED]).config.input.input == ("b", "c", "a")


def test_hyphens_in_values_and_after_two_dashes_stay() -> None:
    assert parse(VERBS["inspect"], ["o", "--grep", "--no-such thing"]).config.grep == "--no-such thing"
    assert parse(VERBS["inspect"], ["--", "--my-data"]).config.dataset == "--my-data"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["prepare", "--tokeniser", "t"], "unknown option --tokeniser: .* did you mean --tokenizer[?]"),
        (["prepare", *NEEDED, "--runer", "x"], "unknown option --runer: .* did you mean --runner[?]"),
        (["prepare", "--packing", "bestfit"], "--packing bestfit: must be .*; did you mean best_fit[?]"),
        (["prepare", "--max-length", "1e3"], "--max_length 1e3: must be a whole number"),
        (["inspect", "--recrod", "train:0:0"], "unknown option --recrod; did you mean --record[?]"),
        (["inspect", "a", "--grep", "b", "--most", str(2**64)], f"--most {2**64}: must be from 1 to {2**53 - 1}"),
        (["inspect", "a", "--json=1"], "--json: takes no value; see --help"),
        (["inspect", "a", "b"], "'b': belongs to no option"),
        (["prepare", "verify"], "'verify': belongs to no option"),
        (["prepare", "--overwrite"], "missing: --input or --mix or --dataset_name, --tokenizer, --output; see --help"),
        (["report"], "missing: OUT; see --help"),
    ],
)  # fmt: skip
def test_unknown_words_are_reported_first_with_the_word_that_was_meant(argv: list[str], message: str) -> None:
    assert re.fullmatch(f"{message}(; see --help)?", error_of(*argv))


def test_escapes_in_an_option_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["o", "--\x1b[31mred"], ["o", "--trace", "\x1b[31mred"], ["o", "\x1b[31mred"]):
        assert __main__.run("inspect", argv) == 2
        assert "\x1b" not in (error := capsys.readouterr().err)
        assert r"\x1b[31mred" in error
