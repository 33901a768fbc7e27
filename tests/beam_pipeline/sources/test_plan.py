from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig, MixItem
from beam_pipeline.sources.plan import describe_plan, plan
from beam_pipeline.support.errors import UsageError


@pytest.fixture
def folder(write) -> Path:
    for name in ("b.txt", "a.txt", "c.jsonl", "sub/a.txt"):
        write(name, json.dumps({"text": name}) + "\n")
    return Path(write("sub/d.txt", "sub\n")).parent.parent


def test_the_order_of_patterns_is_irrelevant_and_duplicates_are_read_once(folder: Path) -> None:
    patterns = [str(folder / name) for name in ("*.txt", "a.*", "sub/*", "c.jsonl", "b.txt")]
    result = plan(InputConfig(input=tuple(patterns)))
    assert result == plan(InputConfig(input=tuple(reversed(patterns))))
    names = [file.path[len(result.root) :] for file in result.files]
    assert names == ["a.txt", "b.txt", "c.jsonl", "sub/a.txt", "sub/d.txt"]
    assert result.root == f"{folder}/"
    assert [(unit.format, len(unit.parts)) for unit in result.units] == [
        ("text", 2),
        ("jsonl", 1),
        ("text", 2),
    ]
    assert result.bytes == sum(file.size for file in result.files)


def test_names_are_the_same_wherever_the_corpus_lies(write) -> None:
    plans = []
    for place in ("here", "there/below"):
        write(f"{place}/x/1.txt", "one")
        path = write(f"{place}/y/2.txt", "two")
        plans.append(plan(InputConfig(input=(str(Path(path).parents[1] / "**"),))))
    forward, reverse = ([unit.parts for unit in result.units] for result in plans)
    assert forward == reverse


def test_relative_paths(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert plan(InputConfig(input=("*.txt",))) == plan(InputConfig(input=(str(folder / "*.txt"),)))


def test_repeats_count_as_text_to_read(write) -> None:
    from beam_pipeline.options.input_options import parse_mix

    path = write("a.txt", "x" * 100)
    assert plan(InputConfig(mix=parse_mix(f"{path}*2.5"))).bytes == 300


NO_TEXT = (
    "is a folder without .jsonl, .ndjson, .parquet, .txt files, markup or source code (it has files of other kinds "
    "(1 .log))"
)


def test_a_folder_gives_the_text_files_below_it(write, caplog) -> None:
    text_paths = [
        write(name, "text\n") for name in ("in/a.txt", "in/b/c.md", "in/b/d [1].TXT", "in/b/e.ndjson")
    ]
    for name in ("in/w.log", "in/.hidden.txt", "in/.git/x.txt", "in/_staging/y.txt", "in/z.csv"):
        write(name, "x\n")
    folder = Path(text_paths[0]).parent
    (folder / "link").symlink_to(folder / "b")
    (folder / "loop").symlink_to(folder)
    for pattern in (folder, f"{folder}/"):
        caplog.clear()
        with caplog.at_level("INFO"):
            result = plan(InputConfig(input=(str(pattern),))).files
        assert [file.path for file in result] == sorted(map(str, text_paths))
        assert caplog.messages == [
            f"--input {pattern}: leaves out links to folders (2), hidden files (3), files of other kinds "
            "(1 .csv, 1 .log)"
        ]


def test_a_folder_gives_its_source_code_but_no_binary_files_or_installed_packages(write, caplog) -> None:
    names = ["app.js", "module.ts", "package/__init__.py", "page.html"]
    paths = [write(f"in/{name}", "x = 1\n") for name in names]
    write("in/video.ts", b"G@\0\x10\0\0\xb0" + b"\xff\0" * 200)
    for name in (
        "node_modules/left/index.js",
        ".git/hooks/a.py",
        "__pycache__/a.py",
        ".eslintrc.js",
        "_part.txt",
    ):
        write(f"in/{name}", "x")
    folder = str(Path(paths[0]).parent)
    with caplog.at_level("INFO"):
        result = plan(InputConfig(input=(folder,)))
    assert [file.path for file in result.files] == paths
    assert result.config.document == "file"
    assert caplog.messages == [f"--input {folder}: leaves out hidden files (5), binary files (1)"]
    with pytest.raises(UsageError, match="is a folder without"):
        plan(InputConfig(input=(folder,), input_format="jsonl"))


def test_a_pattern_names_the_links_that_it_does_not_follow(write, caplog) -> None:
    path = Path(write("in/b/a.txt", "text"))
    (path.parent / "loop").symlink_to(path.parent)
    (path.parent / "gone").symlink_to(path.parent / "nothing")
    folder = path.parent.parent
    with caplog.at_level("INFO"):
        result = plan(InputConfig(input=(f"{folder}/**",))).files
    assert [file.path for file in result] == [str(path)]
    assert caplog.messages == [f"--input {folder}/**: leaves out links to folders (1)"]
    result = plan(InputConfig(input=(f"{folder}/b/loop/*.txt",))).files  # named, so followed
    assert [file.path for file in result] == [f"{folder}/b/loop/a.txt"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("no.txt", "--input no.txt: no file matches"),
        ("*.csv", "--input *.csv: no file matches"),
        ("bare", f"--input bare: {NO_TEXT}; name its files: 'bare/*'"),
        ("bare/", f"--input bare/: {NO_TEXT}; name its files: 'bare/*'"),
    ],
)
def test_nothing_matches(folder: Path, monkeypatch, pattern: str, reason: str) -> None:
    monkeypatch.chdir(folder)
    (folder / "bare").mkdir()
    (folder / "bare" / "x.log").write_text("x")
    with pytest.raises(UsageError) as error:
        plan(InputConfig(input=("a.txt", pattern)))
    assert str(error.value) == reason


def test_an_unknown_file_system(folder: Path) -> None:
    with pytest.raises(UsageError, match="odd://x/y: there is no file system for odd://"):
        plan(InputConfig(input=("odd://x/y",)))


def test_an_unreadable_file(folder: Path, monkeypatch) -> None:
    # Root may read everything, so the test cannot rely on the file's permissions.
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("b.txt"))
    with pytest.raises(UsageError, match=r"b\.txt cannot be read: its permissions do not allow it"):
        plan(InputConfig(input=(str(folder / "*.txt"),)))


def test_local_files_that_the_workers_do_not_see(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--input: .*a\.txt is on this machine, where the runner's workers cannot"
    ):
        plan(InputConfig(input=(str(folder / "*.txt"),)), local_files=False)


def test_document_needs_text_files(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--document paragraph: .* the input has none"):
        plan(InputConfig(input=(str(folder / "c.jsonl"),), document="paragraph"))
    assert plan(InputConfig(input=(str(folder / "*.*"),), document="paragraph")).units


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (
            ["a.txt"],
            {},
            "1 file, 2.0 MB of text; a document is a line (--document paragraph or file changes it)",
        ),
        (
            ["a.txt", "b.md"],
            {"document": "file"},
            "2 files, 4.0 MB of text; a document is a file (--document line or paragraph changes it)",
        ),
        (
            ["a.jsonl"],
            {"text_key": "body"},
            '1 file, 2.0 MB; a document is a record, its text under "body" (--text_key)',
        ),
        (
            ["a.txt", "a.jsonl"],
            {},
            "2 files, 4.0 MB; in text files, a document is a line (--document paragraph or file changes it); in other "
            'files, a document is a record, its text under "text" (--text_key)',
        ),
    ],
)
def test_one_line_tells_what_is_read_and_what_a_document_is(write, names, options, expected) -> None:
    for name in names:
        line = '{"text": "a", "body": "b"}\n' if name.endswith(".jsonl") else "a line of text 123456789\n"
        write(name, (line * 80_000)[:1_999_999] + "\n")
    config = InputConfig(input=(write("none.txt", "")[: -len("none.txt")] + "[a-b].*",), **options)
    assert describe_plan(plan(config)) == f"input: {expected}"


def test_the_size_of_compressed_or_repeated_input_is_marked(write) -> None:
    path = write("a.txt.gz", gzip.compress(b"a line of text\n"))
    config = InputConfig(mix=(MixItem(path, 2, 0.0),))
    planned = plan(config)
    assert 100 < planned.bytes < 1000
    assert describe_plan(planned).startswith(
        f"input: 1 file, about {planned.bytes} B of text, repeats included; a document is a line"
    )


def test_whole_files_are_never_cut(write) -> None:
    path = write("a.txt", "x" * 100)
    (unit,) = plan(InputConfig(input=(path,), document="file", unit_bytes=10)).units
    assert [(part.start, part.end) for part in unit.parts] == [(0, 100)]


def test_all_formats_in_one_input(folder: Path, read) -> None:
    pq.write_table(pa.table({"text": ["from parquet"]}), folder / "e.parquet")
    result = read(str(folder / "*"))
    assert result.texts == ['{"text": "a.txt"}', '{"text": "b.txt"}', "c.jsonl", "from parquet"]


def large_file(path: str, data: bytes, size: int = 600 << 20) -> str:
    """Makes a sparse file of this size that begins with `data`."""
    Path(path).write_bytes(data)
    os.truncate(path, size)
    return path


def test_a_large_compressed_file_is_warned_of_with_the_time_it_takes(tmp_path: Path, capsys) -> None:
    packed = gzip.compress(b"a line of text\n" * 10_000)
    for name in ("a.txt.gz", "b.txt.gz"):
        large_file(str(tmp_path / name), packed, (300 if name[0] == "a" else 600) << 20)
    (tmp_path / "c.txt.gz").write_bytes(packed)
    plan(InputConfig(input=(str(tmp_path / "*"),)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "WARNING: 2 of 3 work units cannot be cut to --unit_bytes 33554432. The largest one, of "
        f"{tmp_path}/b.txt.gz, has about 2.5 GB of text. A single worker reads a compressed file from start to end, "
        "which takes about 2 minutes at 20 MB/s."
    )
    assert "split -C" in line


def test_a_large_document_is_warned_of_and_what_is_cut_is_not(tmp_path: Path, capsys) -> None:
    path = large_file(str(tmp_path / "a.txt"), b"x" * 10_000, 2 << 30)
    plan(InputConfig(input=(path,)))
    assert capsys.readouterr().err == ""
    plan(InputConfig(input=(path,), document="file"))
    assert "A single worker reads a document from start to end" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["data [v1].txt", "what?.txt", "50%41.txt", "two\nlines.txt"])
def test_a_file_whose_name_looks_like_a_glob_is_found_by_its_name(write, read, name: str) -> None:
    assert read(write(name, "text\n")).texts == ["text"]


def test_a_key_that_no_first_record_has_is_an_error_before_the_run(write) -> None:
    path = write("a.jsonl", '{"content": "' + "x" * 20_000 + '", "id": 1}\nbroken')
    compressed = write("b.jsonl.gz", gzip.compress(b'{"content": "one"}'))
    for name in (path, compressed):
        reason = f"^{name}: its first records have no key 'contend' .*; did you mean content[?]"
        with pytest.raises(UsageError, match=reason):
            plan(InputConfig(input=(name,), text_key="contend"))
        assert plan(InputConfig(input=(name,), text_key="content"))
    for text in ("", "broken\n", "[1]\n", '{"content": "one"}\n{"text": "two"}\n'):
        assert plan(InputConfig(input=(write("c.jsonl", text),)))


def test_if_bad_records_are_skipped_some_files_may_lack_the_key(write) -> None:
    paths = write("a.jsonl", '{"body": "one"}\n'), write("b.jsonl", '{"text": "two"}\n')
    assert plan(InputConfig(input=paths), skip_bad=True)
    for arguments in ({"skip_bad": False}, {"skip_bad": True}):
        with pytest.raises(UsageError, match="no key 'text'"):
            plan(InputConfig(input=paths if not arguments["skip_bad"] else paths[:1]), **arguments)
