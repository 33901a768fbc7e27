"""Patterns of paths: the local and remote meaning, compared with Python's glob."""

from __future__ import annotations

import glob
import random
import re
from pathlib import Path

import pytest

from beam_pipeline.support import filesystem, globs

NAMES = [
    "a",
    "b.txt",
    "a.txt",
    ".git",
    ".b.txt",
    "_a",
    "[a]",
    "a]",
    "!",
    "*",
    "?b",
    "a b",
    "é",
    "-",
    "a\nb",
    "\\",
    "^",
]
PARTS = [
    *(
        "*",
        "**",
        "?",
        "*.txt",
        ".*",
        "[a]",
        "[!a]*",
        "[a-b].*",
        "[]a]*",
        "[!]]*",
        "[",
        "[]",
        "[!]",
        "a[",
        "***",
        "a**",
    ),
    *(
        "[[]a]",
        "[*]",
        "[?]b",
        "*]",
        "?*",
        "[.]*",
        "[^a]*",
        "a",
        "b.txt",
        ".git",
        "\\",
        "[\\^]",
        "**.txt",
        ".**",
        "[a/]",
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of three levels with odd names."""
    root = tmp_path_factory.mktemp("tree")
    for first in NAMES:
        for second in NAMES:
            folder = root / first / second
            folder.mkdir(parents=True)
            (folder / "a.txt").touch()
            (folder / ".b.txt").touch()
        (root / first / "file").touch()
    (root / "top.txt").touch()
    return root


def patterns() -> list[str]:
    glob_patterns = [
        *PARTS,
        "**/**",
        "**/a/**",
        "**/.git/*",
        "a/**/b.txt/a.txt",
        "**/*.txt",
        ".git/**",
        "*/*/**/a.txt",
    ]
    rng = random.Random(1)
    return glob_patterns + [
        "/".join(rng.choices([*PARTS, "**", "*"], k=rng.randint(2, 4))) for _ in range(400)
    ]


@pytest.mark.filterwarnings("ignore:Possible")
def test_patterns_mean_what_pythons_glob_says(tree: Path) -> None:
    files = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()]
    match_count = 0
    for pattern in patterns():
        glob_paths = glob.glob(f"{glob.escape(str(tree))}/{pattern}", recursive=True)  # noqa: PTH207 (what is compared)
        expected = sorted({path for path in glob_paths if Path(path).is_file()})
        assert [path for path, _ in filesystem.match(f"{tree}/{pattern}")] == expected, pattern
        regex = globs.path_regex(f"gs://bucket/{pattern}")
        remote_paths = sorted(f"{tree}/{name}" for name in files if regex.fullmatch(f"gs://bucket/{name}"))
        assert remote_paths == expected, pattern
        match_count += bool(expected)
    assert match_count > 60


def test_objects_match_like_files(gcs) -> None:
    for name in (
        "c/a.jsonl",
        "c/x/b.jsonl",
        "c/x/.git/d.jsonl",
        "c/.e.jsonl",
        "c/x/y/[1].jsonl",
        "cc/f.jsonl",
    ):
        gcs.put(f"gs://data/{name}", b"{}")
    expected = ["c/a.jsonl", "c/x/b.jsonl", "c/x/y/[1].jsonl"]
    assert [path for path, _ in filesystem.match("gs://data/c/**/*.jsonl")] == [
        f"gs://data/{name}" for name in expected
    ]
    assert filesystem.match("gs://data/c/x/y/[1].jsonl") == [("gs://data/c/x/y/[1].jsonl", 2)]
    assert (
        filesystem.match("gs://data/c")
        == filesystem.match("gs://data/c/y*")
        == filesystem.match("gs://data")
        == []
    )
    assert [path for path, _ in filesystem.match("gs://data/*/?.jsonl")] == [
        "gs://data/c/a.jsonl",
        "gs://data/cc/f.jsonl",
    ]


def test_a_deep_pattern_on_a_cycle_of_links_ends(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").touch()
    for link, target in (("a/1", "b"), ("a/2", "a"), ("b/1", "a"), ("b/2", "b"), ("b/3", "..")):
        (tmp_path / link).symlink_to(tmp_path / target)
    links: list[str] = []
    matches = filesystem.match(f"{tmp_path}/**/**/*.txt", unfollowed_links=links)
    assert [path for path, _ in matches] == [f"{tmp_path}/a/x.txt", f"{tmp_path}/b/x.txt"]
    assert len(links) == 5


def test_an_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch) -> None:
    def refuse(folder: str):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PermissionError, match=re.escape(str(tmp_path))):
        filesystem.match(f"{tmp_path}/**/*.txt")
