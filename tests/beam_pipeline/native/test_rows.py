"""The compiled functions. `dataset/test_records.py` compares their records with TensorFlow's."""

import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.checks.shards import check_shards
from beam_pipeline.dataset.encoders import encode_by_protobuf, encode_rows
from beam_pipeline.dataset.offsets import _record_ends
from beam_pipeline.native import library as native
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.support.errors import UsageError

SOURCE = Path(native.__file__).with_name("rows.c")
has_compiler = shutil.which("cc") is not None
compiled = pytest.mark.skipif(not has_compiler, reason="there is no C compiler")


@compiled
def test_an_installation_with_a_compiler_has_them():
    assert native.rows_library() is not None


@compiled
@settings(max_examples=100)
@given(st.binary(max_size=100), st.integers(0, 9))
def test_checksums_with_and_without_the_instruction_are_those_of_google_crc32c(data, start):
    library = native.rows_library()
    expected = google_crc32c.value(data[start:])
    for portable in (0, 1):
        assert library.tokenmill_crc32c(data[start:], len(data[start:]), portable) == expected


@compiled
@settings(max_examples=100)
@given(
    st.integers(0, 4),
    st.integers(1, 300),
    st.sampled_from([np.uint16, np.uint32]),
    st.sampled_from(
        [("input_ids",), ("attention_mask", "input_ids"), ("input_ids", "position_ids", "segment_ids")]
    ),
    st.integers(0, 2**32),
)
def test_records_of_any_shape_are_those_of_the_encoder_in_python(rows, max_length, dtype, features, seed):
    rng = np.random.default_rng(seed)
    tops = np.array([1, 127, 128, 16383, 16384, 2**21, 2**28, 2**31 - 1])
    ids = rng.integers(
        0, min(rng.choice(tops), np.iinfo(dtype).max), (rows, max_length), dtype, endpoint=True
    )
    starts = rng.integers(0, 256, (rows, -(-max_length // 8)), np.uint8)
    block = RowBlock(ids, rng.integers(0, max_length, rows, np.uint32, endpoint=True), starts)
    # Rows need not be adjacent in memory.
    block = RowBlock(np.repeat(ids, 2, axis=0)[::2], block.lengths, starts)
    expected = encode_by_protobuf(block, features=features)
    assert encode_rows(block, features=features, max_value=2**31 - 1).tobytes() == expected


@compiled
def test_rows_that_cannot_be_encoded_are_refused():
    library, ids = native.rows_library(), np.zeros((3, 4), np.uint32)
    lengths = np.full(3, 4, np.uint32)
    ids[1, 3] = 2**21
    with pytest.raises(ValueError, match="row 1 has a value above 2097151, or more than 4 tokens"):
        native.encode_rows(library, [("input_ids", ids)], lengths, 4, 9)
    lengths[2] = 5
    with pytest.raises(ValueError, match="row 2 "):
        native.encode_rows(library, [("attention_mask", None)], lengths, 4, 9)
    with pytest.raises(ValueError, match=r"input_ids has the shape \(3, 4\), not \(3, 5\)"):
        native.encode_rows(library, [("input_ids", ids)], np.full(3, 5, np.uint32), 5, 9)
    with pytest.raises(ValueError, match="9 features are more than 8"):
        native.encode_rows(
            library, [(f"f{number}", None) for number in range(9)], np.full(3, 4, np.uint32), 4, 9
        )


@compiled
@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0, 1, 15, 16, 40, 2**32, 2**62, 2**63, 2**64 - 1]), max_size=8),
    st.binary(max_size=30),
    st.integers(0, 40),
)
def test_the_ends_of_records_are_those_found_in_python(lengths, trailing_bytes, place):
    library = native.rows_library()
    data = (
        b"".join(length.to_bytes(8, "little") + bytes(min(length, 40) + 8) for length in lengths)
        + trailing_bytes
    )
    for record_bytes in (data, data[:-3], data[:7], b""):
        piece = np.frombuffer(record_bytes, np.uint8)
        assert native.record_ends(library, piece, place).tolist() == _record_ends(piece, place).tolist()


@compiled
def test_functions_of_another_version_are_refused(tmp_path):
    source, library = tmp_path / "rows.c", tmp_path / "_rows.so"
    source.write_text(SOURCE.read_text().replace("enum { INTERFACE = ", "enum { INTERFACE = 1000 + "))
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(UsageError, match=r"_rows\.so is of another version; delete it, and install again"):
        native.load(str(library))


@compiled
@pytest.mark.parametrize(
    "code", ["enum { INTERFACE = 1 }; int tokenmill_initialize(void) { return INTERFACE; }", ""]
)
def test_libraries_that_lack_functions_are_refused_with_the_remedy(tmp_path, code):
    source, library = tmp_path / "rows.c", tmp_path / "_rows.so"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(UsageError, match=r"_rows\.so .*; delete it, and install again: pip install"):
        native.load(str(library))


def test_verify_does_not_report_compiled_functions_that_cannot_be_loaded_as_damaged_shards(
    tmp_path, monkeypatch
):
    library, shard = tmp_path / "_rows.so", tmp_path / "train-00000-1.tfrecord"
    library.write_bytes(b"of another platform")
    monkeypatch.setattr(native, "rows_library", lambda: native.load(str(library)))
    block = RowBlock(np.ones((1, 4), np.uint16), np.full(1, 4, np.uint32))
    shard.write_bytes(encode_by_protobuf(block, features=("input_ids",)))
    manifest = {
        "tokenizer": {"vocab_size": 10, "special_token_ids": {"pad": 0}},
        "max_length": 4,
        "features": ["input_ids"],
    }
    entry = {
        "name": shard.name,
        "bytes": shard.stat().st_size,
        "crc32c": "",
        "records": 1,
        "rows_checksum": "",
    }
    with pytest.raises(UsageError, match=r"_rows\.so cannot be loaded; delete it, and install again"):
        check_shards(str(tmp_path), manifest, 0, [entry])


def run_sanitized(tmp_path: Path, sanitizer: str, flags: list[str], code: str, **environment: str) -> None:
    """Runs code in a process of its own with the functions compiled for a sanitizer, whose file is LIBRARY in it."""
    runtime = subprocess.run(
        ["cc", f"-print-file-name={sanitizer}.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"the compiler has no {sanitizer}.so")
    library = tmp_path / "_rows.so"
    sources = map(str, sorted(SOURCE.parent.glob("*.c")))
    flags = ["-O1", "-g", *flags, "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *sources, "-o", str(library)], check=True)
    environment |= {"LD_PRELOAD": runtime, "PYTHONPATH": str(SOURCE.parents[2])}
    command = [sys.executable, "-c", f"LIBRARY = {str(library)!r}\n{code}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's library has another name")
@compiled
def test_records_stay_within_their_memory(tmp_path):
    """Compiled with the address sanitizer, in a process of its own; the arrays have the sizes that Python gives."""
    code = """
import numpy as np
from beam_pipeline.native import library as native
library = native.load(LIBRARY)
for max_length in (1, 7, 512):
    for value in (0, 2**7, 2**14, 2**21 - 1, 2**28 - 1, 2**31 - 1):
        ids = np.full((5, max_length), value, np.uint32)
        for features in (["input_ids"], ["input_ids", "position_ids"], ["attention_mask", "input_ids"]):
            columns = [(name, None if name == "attention_mask" else ids) for name in features]
            data = native.encode_rows(library, columns, np.full(5, max_length, np.uint32), max_length, value)
            assert len(native.record_ends(library, data, 0)) == 5
            assert len(native.record_ends(library, np.zeros_like(data), 0)) == -(-(len(data) - 7) // 16)
from beam_pipeline.curation import minhash, shingles, similarity
for module in (minhash, shingles, similarity):
    module.rows_library = lambda: library
for texts in ([], [""], ["a"], ["a" * 50] * 3, ["a b c d e f", "", "é 日本 " * 40, "z " * 3000]):
    for size in (1, 2, 5, 999):
        for characters in (False, True):
            sets = shingles.shingle_sets(texts, shingles.ShingleSize(size, characters))
            for shape in (minhash.Bands(1, 1), minhash.Bands(18, 7), minhash.Bands(1, 1024)):
                minhash.band_hashes(sets, shape, minhash.hash_functions(0, shape.bands * shape.rows))
            own = sets.bounds(np.arange(len(texts)))
            similarities = similarity.jaccard(sets.hashes, sets.hashes, np.concatenate([own, own], axis=1))
            assert (similarities == 1).all()
import json
import random
from tokenizers.normalizers import BertNormalizer
from beam_pipeline.engines.split_levels import make_splitter
from beam_pipeline.native.words import Cut, Kind, WordModel
from beam_pipeline.support.texts import Texts
from beam_pipeline.sources.lines import line_bounds
from beam_pipeline.tokenization.byte_level import DEEPSEEK_PATTERNS, O200K_PATTERN
from benchmarks.hostile_text import hostile_text
rng = random.Random(0)
texts = ["", *(hostile_text(rng, 30, ["▁", "▁▁", " " * 40, "é", "ab" * 300]) for _ in range(300)), "▁", " ", "a"]
fallback = dict(byte_ids=[byte if byte % 3 else -1 for byte in range(256)])
pieces = {text.encode()[:size]: (300 + size, -float(size)) for text in texts for size in range(9)}
for cut in (Cut.AT_MARKS, Cut.UNITS):
    for known in (pieces, {}):
        options = dict(has_prefix=cut == Cut.AT_MARKS, unknown_id=300, unknown_score=-9.0)
        model = WordModel(library, Kind.UNIGRAM, cut, **options, **fallback)
        model.add_pieces(known)
        model.encode(Texts.of(texts * 3), threads=2)
characters = {ord(char): 256 + number for number, char in enumerate(sorted(set("".join(texts))))}
merges = np.array([(256 + rng.randrange(90), 256 + rng.randrange(90), 256 + rng.randrange(90)) for _ in range(300)])
for unknown_id in (None, 5):
    for known in (characters, {}):
        options = dict(unknown_id=unknown_id, fuses_unknown=unknown_id == 5)
        model = WordModel(library, Kind.BPE, Cut.BETWEEN_TOKENS, **options, **fallback)
        model.add_merges(known, merges, ["é", "a"])
        model.encode(Texts.of(texts * 3), threads=2)
records = ({"a": [{}], "text": text} for text in texts)
lines = "".join(json.dumps(record, ensure_ascii=False) + chr(10) for record in records).encode()
starts, ends = line_bounds(lines)
for size in (0, 1, 9, 100):  # also lines that end anywhere
    data, places = np.empty(len(lines) + 16, np.uint8), np.empty((2, len(starts)), np.int64)
    cut = np.maximum(starts, ends - size)
    arrays = [array.ctypes.data for array in (starts, cut)]
    out = [data.ctypes.data, *(row.ctypes.data for row in places)]
    library.tokenmill_json_texts(lines + bytes(16), *arrays, len(starts), b"text", 4, *out)
    library.tokenmill_is_utf8(lines, len(lines) - size)
from beam_pipeline.tokenization import character_map
character_map.rows_library = lambda: library
for exact in (BertNormalizer(lowercase=True), BertNormalizer(lowercase=False, strip_accents=False)):
    assert list(character_map.CharacterMap(exact)(texts * 2)) == list(map(exact.normalize_str, texts * 2))
counts, hashes = np.zeros(300, np.int64), np.empty(5, np.uint64)
for dtype in (np.uint16, np.uint32):
    ids = np.arange(500, dtype=dtype)
    library.tokenmill_count_ids(ids.ctypes.data, ids.itemsize, 500, counts.ctypes.data, 300)
    multipliers = np.ones(100, np.uint64)
    library.tokenmill_hash_rows(ids.ctypes.data, ids.itemsize, 5, 100, multipliers.ctypes.data, hashes.ctypes.data)
from beam_pipeline.native.literals import Option, StringFinder
words = sorted({text[start : start + size] for text in texts for start in (0, 9) for size in range(1, 5)} - {""})
for strings in ([], ["a"], ["\\n", " ", "\u3000é"], words[:300], [" " * size for size in range(1, 600)]):
    for known in (0, 6, 15):
        finder = StringFinder(library, {string: Option(known & number) for number, string in enumerate(strings)})
        finder.find(Texts.of(texts))
        for text in texts[:100]:
            finder.find(Texts.of([text]))
byte_level = {"type": "ByteLevel", "use_regex": True}
for patterns in (DEEPSEEK_PATTERNS, (O200K_PATTERN,), ()):
    parts = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    kinds = [byte_level, {"type": "Digits", "individual_digits": True}]
    splitter = make_splitter([*parts, *kinds] if parts else [{"type": "BertPreTokenizer"}])
    for kind in (Kind.BYTE_BPE, Kind.WORDPIECE):
        model = WordModel(library, kind, Cut.SPLITS, unknown_id=0, most_chars=20)
        if kind == Kind.BYTE_BPE:
            model.add_merges({byte: byte for byte in range(200)}, merges % 256)
        model.add_pieces(pieces)
        model.add_splitter(splitter)
        model.encode(Texts.of(texts * 3), threads=2)
"""
    environment = {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0"}
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    run_sanitized(tmp_path, "libasan", flags, code, **environment)


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's library has another name")
@compiled
def test_threads_that_share_a_model_do_not_race(tmp_path):
    """Compiled with the thread sanitizer, in a process of its own, which ends with its status if there is a race."""
    code = """
import random
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from beam_pipeline.engines.split_levels import make_splitter
from beam_pipeline.native import library as native
from beam_pipeline.native.words import Cut, Kind, WordModel
from beam_pipeline.support.texts import Texts
library = native.load(LIBRARY)
splitter = make_splitter([{"type": "ByteLevel", "use_regex": True}])
model = WordModel(library, Kind.BYTE_BPE, Cut.SPLITS)
model.add_merges({byte: byte for byte in range(256)}, np.array([(97, 98, 256), (256, 97, 257)]))
model.add_splitter(splitter)
rng = random.Random(0)
characters = [chr(code) for code in range(1, 0x20000, 7) if not 0xD800 <= code < 0xE000]  # of many blocks
texts = Texts.of(["ab aba " * 20 + "".join(rng.choices(characters, k=200)) for _ in range(400)])
with ThreadPoolExecutor(3) as pool:
    lengths = list(pool.map(lambda _: model.encode(texts, threads=2)[1].tolist(), range(3)))
assert lengths[0] == lengths[1] == lengths[2] == model.encode(texts)[1].tolist()
"""
    options = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}
    run_sanitized(tmp_path, "libtsan", ["-fsanitize=thread"], code, **options)
