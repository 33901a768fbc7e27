"""Writes a large text for the benchmarks, one paragraph per line, from Debian's documentation packages.

    python benchmarks/corpus.py big.txt      (on Debian; downloads about 65 MB, installs nothing)

The text is about 160 MB in several languages: the documentation of Linux and Python, and a dictionary.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("linux-doc-6.1", "python3.11-doc", "dict-gcide")

_TAG = re.compile(r"<[^>]+>")
_BLANK_LINE = re.compile(r"\n\s*\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path, help="the text file to write")
    output = parser.parse_args().output
    written = 0
    with tempfile.TemporaryDirectory() as folder, output.open("w", encoding="utf-8") as target:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), folder], check=True)
        for path in sorted(Path(folder, "usr").rglob("*")):
            for paragraph in paragraphs(path) if path.is_file() else ():
                target.write(paragraph + "\n")
                written += len(paragraph) + 1
    print(f"{output}: {written / 1e6:.0f} million characters")


def paragraphs(path: Path) -> Iterator[str]:
    """Yields the paragraphs of a documentation file with normalized white space; nothing for other files."""
    name, data = path.name, b""
    if name.endswith((".gz", ".dz")):
        name, data = name[:-3], gzip.decompress(path.read_bytes())
    elif name.endswith((".html", ".txt")):
        data = path.read_bytes()
    if b"\0" in data:
        return
    text = data.decode(errors="ignore")
    if name.endswith(".html"):
        text = html.unescape(_TAG.sub("", text))
    for paragraph in _BLANK_LINE.split(text):
        words = " ".join(paragraph.split())
        if words:
            yield words


if __name__ == "__main__":
    main()
