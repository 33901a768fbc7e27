"""Writes the results of the last `make test-engines` into the table of docs/running-on-flink.md.

python -m tests.engines.table
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from tests.engines.servers import ENGINES, ROOT

_RESULTS = ENGINES / "results.xml"
_PAGE = ROOT / "docs" / "running-on-flink.md"
_BEGIN, _END = "<!-- table of make test-engines -->\n", "<!-- end of the table -->\n"


def main() -> None:
    head, _, after_begin = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, tail = after_begin.partition(_END)
    if not end:
        raise SystemExit(f"{_PAGE} has no markers for the table")
    page = [head, _BEGIN, "\n", table(read_results()), "\n", _END, tail]
    _PAGE.write_text("".join(page), encoding="utf-8")


def read_results() -> list[dict[str, str]]:
    """Returns what each test of a runner recorded: runner, feature, fault, and its result if it passed."""
    results = []
    for case in ElementTree.parse(_RESULTS).iter("testcase"):
        properties = {entry.get("name", ""): entry.get("value", "") for entry in case.iter("property")}
        if properties:
            results.append(properties)
    return results


def table(results: Sequence[dict[str, str]]) -> str:
    """Returns the table in Markdown: a row for each test."""
    lines = ["| runner | what runs | how | result |", "|---|---|---|---|"]
    for row in sorted(results, key=lambda row: row["runner"]):
        result = row.get("result", "**failed**")
        lines.append(f"| {row['runner']} | {row['feature']} | {row['fault']} | {result} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
