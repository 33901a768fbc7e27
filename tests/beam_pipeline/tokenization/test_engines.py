"""Every engine gives HF's ids, on every kind of tokenizer and whatever the text."""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies
from tokenizers import AddedToken, Tokenizer

from beam_pipeline.engines import hf, native
from beam_pipeline.engines.engine import Engine, check_engine, make_engine
from beam_pipeline.engines.hf import HFEngine
from beam_pipeline.engines.native import NativeEngine
from beam_pipeline.engines.tokenizer_parts import split_tokenizer
from beam_pipeline.native import words
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization import normalization
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from tests.beam_pipeline.tokenizers import without_bytes

WIKITEXT = Path(__file__).resolve().parents[4] / "shared" / "corpora" / "wikitext-2" / "valid.txt"


PLAIN_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PUNCTUATION = {"type": "Punctuation", "behavior": "Removed"}
DIGITS = {"type": "Digits", "individual_digits": False}
DIGIT = {"type": "Digits", "individual_digits": True}
ALONE = {"type": "Punctuation", "behavior": "Isolated"}
WHITE = {"type": "WhitespaceSplit"}
LETTERS_ONLY = {
    "type": "Split",
    "pattern": {"Regex": r"\p{Lu}?\p{Ll}+(?i:'ll|'d)?(?!\p{N})|[^\p{L}]"},
    "behavior": "Removed",
    "invert": True,
}
NO_LINES = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Removed", "invert": False}


def encode(engine: Engine, texts: list[str]) -> list[list[int]]:
    ids, lengths = engine.encode_batch(texts)
    assert lengths.dtype == np.int64 and len(lengths) == len(texts) and lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def reference_tokenizer(tokenizer_json: str, *, parse_special_tokens: bool = False) -> Tokenizer:
    tokenizer = tokenizer_for_text(tokenizer_json, parse_special_tokens=parse_special_tokens)
    return hf.reference_tokenizer(tokenizer, parse_special_tokens=parse_special_tokens)


def encode_by_hf(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("parse_special_tokens", [False, True])
def test_the_engine_that_auto_picks_gives_hf_ids(
    tokenizer_json: str, hard_texts: list[str], hostile_texts: list[str], parse_special_tokens: bool
):
    texts = [*hard_texts, *hostile_texts]
    engine = make_engine("auto", tokenizer_json, parse_special_tokens=parse_special_tokens)
    assert isinstance(engine, NativeEngine)
    options = {"parse_special_tokens": parse_special_tokens, "control_ids": ()}
    assert check_engine("auto", tokenizer_json, **options) is None
    reference = reference_tokenizer(tokenizer_json, parse_special_tokens=parse_special_tokens)
    expected = encode_by_hf(reference, texts)
    for text, engine_ids, reference_ids in zip(texts, encode(engine, texts), expected, strict=True):
        assert engine_ids == reference_ids, repr(text)
    # One by one and in another order: the cache of earlier texts must not matter.
    assert [encode(engine, [text])[0] for text in reversed(hard_texts[:200])] == expected[:200][::-1]


@pytest.mark.parametrize("name", ["unigram-first", "sentencepiece-gemma", "bpe-o200k", "wordpiece"])
def test_threads_of_the_native_engine_give_the_ids_of_one(
    name: str,
    make_tokenizer: Callable[[str], str],
    hostile_texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    tokenizer_json = make_tokenizer(name)
    expected = encode(make_engine("native", tokenizer_json), hostile_texts)
    monkeypatch.setattr(words, "_BYTES_PER_THREAD", 1)
    engine = make_engine("native", tokenizer_json, threads=3)
    for texts in (hostile_texts, hostile_texts[:2], hostile_texts[:1]):
        assert encode(engine, texts) == expected[: len(texts)]
    if hasattr(os, "fork"):  # a child has none of the threads
        child = os.fork()
        if not child:
            os._exit(encode(engine, hostile_texts) != expected)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork while another thread runs
def test_a_process_forked_while_a_thread_encodes_can_encode(make_tokenizer: Callable[[str], str]):
    tokenizer_json = make_tokenizer("wordpiece")
    engine = make_engine("native", tokenizer_json)
    expected = encode(engine, ["the text"])
    new_words = " ".join(map(str, range(1_000_000, 1_100_000)))
    expected_of_new = encode_by_hf(reference_tokenizer(tokenizer_json), [new_words])
    has_begun, may_end = threading.Event(), threading.Event()
    model = engine._model
    encode_words = model._encode

    def wait(*arguments):
        has_begun.set()
        may_end.wait()
        return encode_words(*arguments)

    model._encode = wait
    thread = threading.Thread(target=engine.encode_batch, args=(["another text"],))
    thread.start()
    has_begun.wait()
    model._encode = encode_words
    child = os.fork()
    if not child:
        signal.alarm(20)  # instead of waiting forever: also for the other call, before the cache grows
        os._exit(encode(engine, ["the text"]) != expected or encode(engine, [new_words]) != expected_of_new)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert encode(engine, ["the text"]) == expected


def test_several_calls_at_once_give_the_ids_of_one_after_the_other(make_tokenizer: Callable[[str], str]):
    tokenizer_json = make_tokenizer("wordpiece")
    # The cache grows again and again, and each time the calls wait for each other.
    texts = [[" ".join(map(str, range(start, start + 500)))] for start in range(0, 100_000, 500)]
    expected = [encode(make_engine("native", tokenizer_json), each) for each in texts[:20]]
    tokenizer = tokenizer_for_text(tokenizer_json, parse_special_tokens=False)
    engine = NativeEngine(split_tokenizer(tokenizer, False), tokenizer, parse_special_tokens=False)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda each: encode(engine.copy(1), each), texts))
        assert results[:20] == expected
        assert list(threads.map(lambda each: encode(engine.copy(2), each), texts)) == results


def test_words_of_every_length_stay_in_the_cache_of_the_native_engine(
    make_tokenizer: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    tokenizer_json = make_tokenizer("unigram-first")
    engine, reference = make_engine("native", tokenizer_json), reference_tokenizer(tokenizer_json)
    rng = random.Random(5)
    texts = [" ".join(rng.choices("abé漢😀", k=size)) for size in range(40)]
    texts += ["".join(rng.choices("abé漢😀", k=size)) for size in range(140)]
    # More words than the cache can take at first, so that it grows.
    texts += [
        " ".join(str(number) for number in range(start, start + 1000)) for start in range(0, 20_000, 1000)
    ]
    expected = encode_by_hf(reference, texts)
    assert encode(engine, texts) == expected == encode(engine, texts)


UNKNOWN_BYTES = {
    "Cyrillic and line breaks": ("bpe", "ÐÑĊč", None),
    "indents": ("bpe-llama3", "ĉĊ", None),
    "a slash after a line break": ("bpe-tekken", "Ċ", None),
    "an unknown token": ("bpe-gpt2", "ÐÑĊ", False),
    "a fused unknown token": ("bpe-gpt2", "ÐÑĊ", True),
}


@pytest.mark.parametrize("kind", UNKNOWN_BYTES)
def test_only_words_in_which_a_dropped_byte_joins_others_are_left_to_hf(
    kind: str, make_tokenizer: Callable[[str], str], hostile_texts: list[str]
):
    name, chars, fuses = UNKNOWN_BYTES[kind]
    parts = without_bytes(json.loads(make_tokenizer(name)), chars)
    if fuses is not None:
        parts["model"] |= {"unk_token": min(parts["model"]["vocab"], key=len), "fuse_unk": fuses}
    engine, reference = _pair(json.dumps(parts))
    lines = ["Слово дело, а не тело.\nand words\n\n", "\tif x:\n\t\treturn\t1\n/ path\r\n", "th\ne"]
    texts = [*lines, *hostile_texts, "t\nh \n/\nе/", "th" + "\n" * 3 + "e", "\n", "\u0436\n"]
    assert encode(engine, texts) == encode_by_hf(reference, texts)
    before = engine.fallbacks.bytes
    encode(engine, lines * 50)
    assert fuses or engine.fallbacks.bytes - before < 0.1 * len("".join(lines * 50).encode())


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.data())
def test_any_text(
    data: strategies.DataObject, tokenizer_json: str, text_strategy: strategies.SearchStrategy[str]
):
    engine, reference = _pair(tokenizer_json)
    texts = data.draw(strategies.lists(text_strategy, min_size=1, max_size=8))
    assert encode(engine, texts) == encode_by_hf(reference, texts)


_PAIRS: dict[str, tuple[Engine, Tokenizer]] = {}


def _pair(tokenizer_json: str) -> tuple[Engine, Tokenizer]:
    if tokenizer_json not in _PAIRS:
        _PAIRS[tokenizer_json] = make_engine("auto", tokenizer_json), reference_tokenizer(tokenizer_json)
    return _PAIRS[tokenizer_json]


# Large blocks of characters that behave alike: every 50th character is tested.
_UNIFORM_BLOCKS = [(0x3400, 0x9FF0), (0xAC00, 0xD7A4), (0xE000, 0xF900)]
_UNIFORM_BLOCKS += [(0x17000, 0x18C00), (0x20000, 0x2FFFF)]


@pytest.mark.parametrize(
    "name",
    [
        "unigram",
        "wordpiece",
        "wordpiece-lowercase",
        "bpe",
        "bpe-o200k",
        "bpe-qwen3.5",
        "bpe-nanochat",
        "bpe-falcon",
    ],
)
def test_every_character(name: str, make_tokenizer: Callable[[str], str]):
    engine, reference = _pair(make_tokenizer(name))
    codes = [code for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    codes = [code for code in codes if code % 50 == 0 or not any(a <= code < b for a, b in _UNIFORM_BLOCKS)]
    for context in ("a{}b",) if "bpe" not in name else ("a{}'s", "1{}2{}<unk"):
        # One character per word, separated by full stops, so that neighbours never interact.
        texts = [
            " . ".join(context.replace("{}", chr(code)) for code in codes[first : first + 64])
            for first in range(0, len(codes), 64)
        ]
        assert encode(engine, texts) == encode_by_hf(reference, texts)


def test_every_character_with_a_vocabulary_that_knows_few_of_them(make_tokenizer: Callable[[str], str]):
    parts = json.loads(make_tokenizer("wordpiece"))
    pieces = [token["content"] for token in parts["added_tokens"]] + ["the", "##x", "\u65e5"]
    parts["model"]["vocab"] = {piece: index for index, piece in enumerate(pieces)}
    for token in parts["added_tokens"]:
        token["id"] = parts["model"]["vocab"][token["content"]]
    parts["post_processor"] = None
    engine, reference = _pair(json.dumps(parts))
    codes = [*range(0x3400), *range(0xE000, 0x12000), *range(0x1F000, 0x20000), *range(0x10FF00, 0x110000)]
    texts = [
        " . ".join(f"the {chr(code)} the{chr(code)}x" for code in codes[first : first + 64])
        for first in range(0, len(codes), 64)
    ]
    assert encode(engine, texts) == encode_by_hf(reference, texts)


@pytest.mark.skipif(not WIKITEXT.exists(), reason="needs ../shared")
def test_real_text(tokenizer_json: str):
    texts = WIKITEXT.read_text(encoding="utf-8").split("\n")[:600]
    engine, reference = _pair(tokenizer_json)
    before = engine.fallbacks.documents
    assert encode(engine, texts) == encode_by_hf(reference, texts)
    # (Only the unknown characters of these small vocabularies are left to HF. One of them knows hardly any.)
    if '"a{b"' not in tokenizer_json:
        assert engine.fallbacks.documents - before < 0.5 * len(texts)


@pytest.mark.parametrize("name", ["unigram", "unigram-in-vocabulary", "wordpiece", "bpe", "sentencepiece"])
@pytest.mark.parametrize("engine_name", ["auto", "hf"])
def test_long_texts_are_cut_without_a_trace(
    name: str, engine_name: str, make_tokenizer: Callable[[str], str], hard_texts: list[str]
):
    tokenizer_json = make_tokenizer(name)
    engine = make_engine(engine_name, tokenizer_json)
    text = " and".join(hard_texts)[:100_000]
    text_without_spaces = "".join(text.split())[:70_000]  # without a space
    texts = ["short", text, text_without_spaces, "the end"]
    assert encode(engine, texts) == encode_by_hf(reference_tokenizer(tokenizer_json), texts)


def test_a_word_of_megabytes_is_cut_in_the_same_way_by_all_engines(
    make_tokenizer: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    longest = 20_000  # instead of a million characters
    monkeypatch.setattr(normalization, "LONGEST_WORD", longest)
    monkeypatch.setattr(native, "LONGEST_WORD", longest)
    monkeypatch.setattr(hf, "_MAX_TEXT_CHARS", 9_000)
    text = "ab " + "é" * (2 * longest + 1000) + " cd" * 10_000
    for name in ("unigram", "wordpiece", "bpe", "sentencepiece"):
        tokenizer_json = make_tokenizer(name)
        ids = encode(make_engine("auto", tokenizer_json), [text])
        assert ids == encode(make_engine("hf", tokenizer_json), [text]), name


def test_added_tokens_of_hundreds_of_characters_have_all_engines(make_tokenizer: Callable[[str], str]):
    tokenizer = Tokenizer.from_str(make_tokenizer("sentencepiece"))
    tokenizer.add_tokens([AddedToken("~" * size, normalized=False) for size in range(1, 900)])
    texts = ["~" * 2000 + "a\n~ b", "ab" * 40_000 + "~" * 899, "~"]
    expected = encode_by_hf(tokenizer, texts)
    for name in ("native", "hf"):
        assert encode(make_engine(name, tokenizer.to_str()), texts) == expected


def test_special_tokens_in_text_are_text(tokenizer_json: str):
    tokenizer = Tokenizer.from_str(tokenizer_json)
    special = {
        number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and "unk" not in token.content.lower()
    }
    assert special
    literals = [*map(tokenizer.id_to_token, special), "<s>", "</s>", "[SEP]", "<|endoftext|>"]
    texts = [
        text.format(literal) for literal in literals for text in ("{}", "a {} b", "a{0}b", "{0}{0}", " {}\n")
    ]
    for name in ("auto", "hf"):
        for ids in encode(make_engine(name, tokenizer_json), texts):
            assert special.isdisjoint(ids)


def test_special_tokens_in_text_are_parsed_on_request(tokenizer_json: str):
    tokens = Tokenizer.from_str(tokenizer_json).get_added_tokens_decoder()
    # (A run of spaces between spaces is a longer run.)
    tokens = {number: token for number, token in tokens.items() if token.content.strip()}
    texts = [f"a {token.content} b" for token in tokens.values()]
    for name in ("auto", "hf"):
        engine = make_engine(name, tokenizer_json, parse_special_tokens=True)
        assert all(number in ids for number, ids in zip(tokens, encode(engine, texts), strict=True))
        cut = name == "hf" or '"prepend_scheme": "first"' not in tokenizer_json
        assert engine.fallbacks.reasons["special tokens in text"] == (0 if cut else len(texts))


def test_the_reference_is_the_tokenizer_itself(tokenizer_json: str, hard_texts: list[str]):
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    if '"<s>", 0.0' in tokenizer_json:  # see test_special_tokens_in_text_are_text
        hard_texts = [text for text in hard_texts if "<" not in text]
    assert encode_by_hf(reference_tokenizer(tokenizer_json), hard_texts) == encode_by_hf(
        tokenizer, hard_texts
    )


@pytest.mark.parametrize(
    ("name", "tokenizer", "reason"),
    [
        ("native", "bpe", "the BPE option dropout"),
        ("fastest", "bpe", "no such engine; choose one of auto, hf, native"),
    ],
)
def test_an_engine_that_cannot_says_why(
    name: str, tokenizer: str, reason: str, make_tokenizer: Callable[[str], str]
):
    parts = json.loads(make_tokenizer(tokenizer))
    parts["model"]["dropout"] = 0.1
    tokenizer_json = json.dumps(parts)
    with pytest.raises(UsageError, match=reason):
        make_engine(name, tokenizer_json)
    if name != "fastest":
        with pytest.raises(UsageError, match=reason):
            check_engine(name, tokenizer_json, parse_special_tokens=False, control_ids=())


@pytest.mark.parametrize(
    ("tokenizer", "change"),
    [
        ("wordpiece", {"normalizer": {"strip_accents": True, "lowercase": False}}),
        ("wordpiece", {"normalizer": {"handle_chinese_chars": False}}),
        ("wordpiece", {"normalizer": {"clean_text": False}}),
        ("wordpiece", {"normalizer": {"lowercase": True, "strip_accents": False}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGIT, ALONE, WHITE, PLAIN_BYTES]}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [WHITE, ALONE, PLAIN_BYTES]}}),
        ("wordpiece", {"model": {"max_input_chars_per_word": 5, "continuing_subword_prefix": "#"}}),
        ("wordpiece", {"model": {"max_input_chars_per_word": 2**63}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [PUNCTUATION, PLAIN_BYTES]}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [WHITE, DIGITS, PLAIN_BYTES]}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [LETTERS_ONLY, PLAIN_BYTES]}}),
        ("bpe", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [NO_LINES, PLAIN_BYTES]}}),
    ],
)
def test_options_that_few_tokenizers_have(
    tokenizer: str, change: dict, make_tokenizer: Callable[[str], str], hostile_texts: list[str]
):
    parts = json.loads(make_tokenizer(tokenizer))
    for part, options in change.items():
        parts[part] = options if "type" in options else {**parts[part], **options}
    tokenizer_json = json.dumps(parts)
    engine = make_engine("native", tokenizer_json)
    assert encode(engine, hostile_texts) == encode_by_hf(reference_tokenizer(tokenizer_json), hostile_texts)
    long_text = " and".join(hostile_texts) * 3
    texts = [long_text, long_text.replace(" ", "")]
    assert encode(engine, texts) == encode(make_engine("hf", tokenizer_json), texts)


@pytest.mark.parametrize(
    ("tokenizer", "change", "reason"),
    [
        ("bpe", {"model": {"dropout": 0.1}}, "the BPE option dropout"),
        ("bpe", {"pre_tokenizer": {"type": "Whitespace"}}, "the pre-tokenizer Whitespace"),
        ("bpe", {"pre_tokenizer": {"use_regex": False}}, "does not split"),
        *(
            (
                "bpe",
                {"normalizer": {"type": "Replace", "pattern": pattern, "content": "-"}},
                "replaces nothing",
            )
            for pattern in ({"String": ""}, {"Regex": "a*"}, {"Regex": "$"})
        ),
        ("wordpiece", {"pre_tokenizer": {"type": "Whitespace"}}, "the pre-tokenizer"),
        ("unigram-first", {"pre_tokenizer": {"split": False}}, "the pre-tokenizer"),
        ("unigram-first", {"pre_tokenizer": {"replacement": "_"}}, "the pre-tokenizer"),
        ("unigram-first", {"normalizer": {"type": "StripAccents"}}, "remove the first character"),
    ],
)
def test_what_is_not_known_is_left_to_hf(
    tokenizer: str, change: dict, reason: str, make_tokenizer: Callable[[str], str], hard_texts: list[str]
):
    parts = json.loads(make_tokenizer(tokenizer))
    for part, options in change.items():
        parts[part] = options if "type" in options else {**parts[part], **options}
    tokenizer_json = json.dumps(parts)
    engine = make_engine("auto", tokenizer_json)
    assert isinstance(engine, HFEngine) and re.search(reason, engine.reason)
    warning = check_engine("auto", tokenizer_json, parse_special_tokens=False, control_ids=())
    assert warning == engine.reason  # prepare warns about it before the run
    if reason not in ("the BPE option dropout", "replaces nothing"):
        assert encode(engine, hard_texts[:50]) == encode_by_hf(
            reference_tokenizer(tokenizer_json), hard_texts[:50]
        )
    with pytest.raises(UsageError, match=reason):
        make_engine("native", tokenizer_json)


def test_added_tokens_looked_for_in_normalized_text_are_left_to_hf(make_tokenizer: Callable[[str], str]):
    parts = json.loads(make_tokenizer("wordpiece-lowercase"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    added_token = {"id": len(parts["model"]["vocab"]), "content": "NewWord", "normalized": True, **flags}
    parts["added_tokens"].append(added_token)
    engine = make_engine("auto", json.dumps(parts))
    assert isinstance(engine, HFEngine)
    assert added_token["id"] in encode(engine, ["a newword here"])[0]


def test_threads_change_nothing(make_tokenizer: Callable[[str], str], hard_texts: list[str], tmp_path: Path):
    (tmp_path / "texts.json").write_text(json.dumps(hard_texts))
    program = (
        "import json, sys, hashlib\n"
        "from pathlib import Path\n"
        "from beam_pipeline.engines.engine import make_engine\n"
        "engine = make_engine(sys.argv[1], Path('tokenizer.json').read_text(), threads=int(sys.argv[2]))\n"
        "ids, lengths = engine.encode_batch(json.loads(Path('texts.json').read_text()))\n"
        "print(hashlib.sha256(ids.tobytes() + lengths.tobytes()).hexdigest())\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAYON", "TOKENIZERS_"))}
    for name in ("unigram", "bpe"):
        (tmp_path / "tokenizer.json").write_text(make_tokenizer(name))
        runs = [("auto", "1"), ("auto", "3"), ("hf", "2")]
        outputs = {
            subprocess.run(
                [sys.executable, "-c", program, *run],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for run in runs
        }
        assert len(outputs) == 1


def private_bytes() -> int | None:
    """Returns the bytes of memory that this process uses, without mapped files; None if the system has no /proc."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        return None
    _, resident, shared, *_ = map(int, statistics.read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(private_bytes() is None, reason="needs /proc")
@pytest.mark.parametrize(
    ("name", "batches", "most"), [("bpe-gpt2", 80, 110), ("sentencepiece", 80, 110), ("unigram", 80, 110)]
)
def test_text_of_ever_new_words_does_not_fill_the_memory(
    name: str, batches: int, most: int, make_tokenizer: Callable[[str], str]
):
    tokenizer_json = make_tokenizer(name)
    engine = make_engine("auto", tokenizer_json)
    reference, rng = reference_tokenizer(tokenizer_json), random.Random(0)
    memory_use = []
    for _ in range(batches):
        texts = [f"{rng.randrange(10**20):020d}" for _ in range(25_000)]
        ids, lengths = engine.encode_batch(texts)
        expected = [number for ids in encode_by_hf(reference, texts[:100]) for number in ids]
        assert ids[: lengths[:100].sum()].tolist() == expected
        memory_use.append(private_bytes())
    # (Libraries that the first batch needs may not have been loaded before.)
    assert max(memory_use) - memory_use[1] < most << 20


def test_engines_do_not_change_the_parsed_tokenizer_which_is_parsed_once(tokenizer_json: str):
    load_tokenizer.cache_clear()
    before = copy.deepcopy(load_tokenizer(tokenizer_json).parsed)
    for name, parse_special_tokens in itertools.product(["auto", "hf"], [True, False]):
        engine = make_engine(name, tokenizer_json, parse_special_tokens=parse_special_tokens)
        engine.encode_batch(["a text\n", "<s>\ufffd{"])
    assert load_tokenizer(tokenizer_json).parsed == before
    assert load_tokenizer.cache_info().misses == 1
