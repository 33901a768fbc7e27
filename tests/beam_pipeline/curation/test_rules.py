"""The published filters. benchmarks/curation.py compares them with datatrove's, document by document."""

import json

import numpy as np
import pytest

from beam_pipeline.curation.filters import RULES, bounds_of, check_filters
from beam_pipeline.curation.measuring import MeasuredTexts
from beam_pipeline.curation.words import WordSplitter
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.support.errors import UsageError

spacy = pytest.importorskip("spacy")

GOOD = """The lines of an old map have faded, and nobody could read the names of its rivers.
We asked two librarians to compare it with later sheets that have been printed in Vienna.
Most villages lie on the left bank, while mills and forges stand further down the valley.
With a lens, letters appear where the paper was folded; some of them belong to a bridge.
Next year, a better camera will show whether anything is written below the coat of arms."""


@pytest.fixture(scope="module")
def splitter() -> WordSplitter:
    return WordSplitter()


@pytest.fixture
def reason(splitter):
    """Returns the limit that a text breaks by a rule, or None."""

    def reason_of(name: str, text: str, **thresholds: float) -> str | None:
        rule = RULES[name]
        bounds = bounds_of(rule, {f"{name}.{key}": value for key, value in thresholds.items()})
        measured = rule.measure(MeasuredTexts([GOOD, text], splitter), bounds)
        rows = rule.removals(measured.measures, bounds).table.to_pylist()
        if not rows:
            return None
        assert [row["document"] for row in rows] == [1]
        evidence = json.loads(rows[0]["evidence"])
        assert rows[0]["value"] == measured.measures[evidence.pop("measure")][1]
        (limit,) = evidence
        return limit

    return reason_of


@pytest.mark.parametrize(
    ("rule", "text", "limit"),
    [
        ("gopher", GOOD, None),
        ("gopher", "A short text of a few words.", "min_words"),
        ("gopher", "a b c d " * 20, "min_word_length"),
        ("gopher", "incomprehensibilities " * 60, "max_word_length"),
        ("gopher", GOOD + " #word" * 30, "max_hashes"),
        ("gopher", GOOD + " and… " * 30, "max_ellipses"),
        ("gopher", "\n".join(f"- {line}" for line in GOOD.split("\n")), "max_bullet_lines"),
        ("gopher", GOOD.replace(".\n", "...\n"), "max_ellipsis_lines"),
        ("gopher", GOOD + " 2026" * 60, "min_letter_words"),
        ("gopher", "rivers names lines maps words " * 12, "min_stop_words"),
        ("gopher_repetition", GOOD, None),
        ("gopher_repetition", GOOD + "\n" + "\n".join(GOOD.split("\n")[:2]), "max_line_characters"),
        ("gopher_repetition", "\n\n".join([GOOD, GOOD]), "max_paragraphs"),
        ("gopher_repetition", GOOD + "\nshort" * 4, "max_lines"),
        ("gopher_repetition", " ".join([GOOD, GOOD]).replace("\n", " "), "max_5_grams"),
        ("gopher_repetition", "of the " * 40, "max_top_2_gram"),
        ("c4", GOOD, None),
        ("c4", GOOD + "\nLorem ipsum dolor sit amet.", "max_lorem_ipsum"),
        ("c4", GOOD + "\nint main() { return 0; }.", "max_curly_bracket"),
        ("c4", "\n".join(GOOD.split("\n")[:4]), "min_sentences"),
        ("c4", GOOD.replace(".\n", "\n"), "min_sentences"),
        ("fineweb", GOOD, None),
        ("fineweb", GOOD.replace(".\n", "\n").removesuffix("."), "min_ended_lines"),
        ("fineweb", "\n".join(f"Item {number}." for number in range(9)), "max_short_lines"),
        ("fineweb", GOOD + "\n" + GOOD.split("\n")[0], "max_repeated_characters"),
        ("fineweb", GOOD + "\n" * 60, "max_line_ends"),
    ],
)
def test_each_limit_removes_what_breaks_it(reason, rule, text, limit):
    assert reason(rule, text) == limit


def test_a_threshold_can_be_changed(reason):
    assert reason("gopher", "Most of the rivers.", min_words=4, min_stop_words=1) is None
    assert reason("c4", GOOD.replace(".\n", "\n"), ended_lines=0, min_sentences=1) is None


def test_c4_removes_lines_and_citations(splitter):
    rule = RULES["c4"]
    text = "Home | About\nThe rivers rose.[2]\nPlease enable JavaScript now.\nWe use cookies on this site.\nToo short."
    assert rule.measure(MeasuredTexts([text], splitter), rule.settings).texts == ["The rivers rose."]


def test_words_and_sentences_are_those_of_spacy(splitter):
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    texts = [
        "We can't (U.S.)  go... e.g. to http://a.b/c?d, «why»?!  No — a.m. \t well… \x85x",
        *["Hi.  . There", "! so", "?!", "a b", 'One. Two!? (Three.) "Four." five', "x" * 50 + "。y"],
    ]
    words = splitter.split(texts)
    for index, text in enumerate(texts):
        expected = [token.text.strip() for token in pipeline(text) if token.text.strip()]
        span = slice(words.bounds[index], words.bounds[index + 1])
        assert words.lengths[span].tolist() == list(map(len, expected))
        numbers = dict(zip(expected, words.ids[span].tolist(), strict=True))
        assert [numbers[word] for word in expected] == words.ids[span].tolist()
    assert splitter.count_sentences(texts).tolist() == [len(list(pipeline(text).sents)) for text in texts]


def test_measures_of_a_text_do_not_depend_on_the_texts_beside_it(splitter):
    texts = [GOOD, "of the " * 9 + GOOD, "a", "", GOOD + GOOD]
    for rule in RULES.values():
        together = rule.measure(MeasuredTexts(texts, splitter), rule.settings).measures
        for index, text in enumerate(texts):
            alone = rule.measure(MeasuredTexts([text], WordSplitter()), rule.settings).measures
            assert {name: values[0] for name, values in alone.items()} == {
                name: values[index] for name, values in together.items()
            }


def test_an_unknown_threshold_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"gopher.min_word: .* did you mean .*gopher.min_words"):
        check_filters(CurationConfig(filter=("gopher",), thresholds=(("gopher.min_word", 3.0),)))
    with pytest.raises(UsageError, match="not a threshold of --filter c4"):
        check_filters(CurationConfig(filter=("c4",), thresholds=(("gopher.min_words", 3.0),)))
    assert np.isfinite(list(RULES["gopher"].defaults.values())).all()
