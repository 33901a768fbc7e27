from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from beam_pipeline.report_page.charts import Histogram
from beam_pipeline.report_page.page import quantile
from beam_pipeline.support.amounts import human_bytes
from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import prepare, report
from beam_pipeline.views.command import prepare_command
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import arguments

VOID = {"meta", "br", "input", "link"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects the text, the attributes and the scripts."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


@pytest.fixture(scope="module")
def html(dataset: Path) -> str:
    return (dataset / "report.html").read_text(encoding="utf-8")  # prepare wrote it


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(html: str):
    page = Page(html)
    assert {"html", "head", "body", "svg", "table", "details"} <= {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base")
        for name in attributes:
            assert name not in ("src", "href", "xlink:href", "action") and not name.startswith("on")
    assert "url(" not in html and "@import" not in html and "http" not in re.sub(r"http-equiv", "", html)
    assert any(attributes.get("content", "").startswith("default-src 'none'") for _, attributes in page.tags)
    assert "prefers-color-scheme: dark" in html


def test_its_numbers_are_the_manifests(html: str, dataset: Path):
    text = " ".join(Page(html).text)
    for split in open_dataset(str(dataset)):
        totals = split.manifest["totals"]
        for name in ("documents", "tokens", "rows", "padding"):
            assert f"{totals[name]:,}" in text
        assert f"{split.statistics()['unigram_entropy']:.3f} nats" in text
        fill = totals["tokens"] / (totals["tokens"] + totals["padding"])
        assert f"{fill:.3%}" in text
        for shard in split.manifest["shards"]:
            assert f"{shard['name']}: {shard['records']:,} records, {shard['bytes']:,} bytes" in text
    manifest = split.manifest
    assert manifest["fingerprint"] in text and manifest["tokenizer"]["sha256"] in text
    for name, value in manifest["config"].items():
        assert name in text or value in (None, [])
    assert f"Left out of {manifest['excluded']['records']:,} records" in text


def test_rows_are_shown_with_their_documents_and_sources(html: str, corpus: Path):
    text = " ".join(Page(html).text)
    assert len(re.findall(r"train:\d+:\d+", text)) == len(re.findall(r"validation:\d+:\d+", text)) == 3
    places = re.findall(rf"{re.escape(str(corpus))}, line (\d+) \(byte (\d+)\)", text)
    assert len(places) >= 6
    data = corpus.read_bytes()
    for line, byte in places:
        assert data[: int(byte)].count(b"\n") + 1 == int(line)


def test_it_is_the_same_again(html: str, dataset: Path, tmp_path: Path):
    copy = shutil.copytree(dataset, tmp_path / "elsewhere")
    (copy / "report.html").unlink()
    assert report.write_report(str(copy)) == f"{copy}/report.html"
    assert (copy / "report.html").read_text(encoding="utf-8") == html


def test_one_split_has_a_page_of_its_own(dataset: Path, tmp_path: Path, capsys):
    copy = shutil.copytree(dataset, tmp_path / "out")
    report.main([str(copy / "validation")])
    assert capsys.readouterr().out.strip() == f"{copy}/validation/report.html"
    text = " ".join(Page((copy / "validation" / "report.html").read_text(encoding="utf-8")).text)
    assert re.search(r"validation:\d+:", text) and not re.search(r"train:\d+:", text)


def test_text_from_the_data_cannot_do_anything(tmp_path: Path, tokenizer_folder: Path):
    hostile_text = "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x00\x1b[2J\u202e\"'</style>"
    tokenizer = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    # A vocabulary that spells the text out, so that it comes back as it was.
    tokenizer["normalizer"] = None
    split = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = split
    tokenizer["decoder"] = {"type": "Fuse"}
    tokenizer["model"]["vocab"] += [[hostile_text, -1.0]]
    folder = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_folder, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    source = tmp_path / "<b onload=x>.txt"
    source.write_text((hostile_text + "\n") * 40)
    out = tmp_path / "out"
    prepare.main(arguments(source, folder, out, "--max_length", "8"))
    html = (out / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert not {"script", "img", "b onload=x"} & {tag for tag, _ in page.tags}
    assert not any("onerror" in attributes or "onload" in attributes for _, attributes in page.tags)
    assert not {"\x00", "\x1b", "\u202e"} & set(html)
    assert any("<script>alert(1)</script>" in text for text in page.text)
    assert any(r"\x00\x1b[2J\u202e" in text for text in page.text)
    assert any("<b onload=x>.txt, bytes 0 to" in text for text in page.text)


def test_a_split_without_documents_is_no_obstacle(tmp_path: Path, tokenizer_folder: Path):
    source = tmp_path / "one.txt"
    source.write_text("the only document\n")
    out = tmp_path / "out"
    prepare.main(arguments(source, tokenizer_folder, out, "--splits", "a=0.5,b=0.5"))
    Page((out / "report.html").read_text(encoding="utf-8"))


def test_it_begins_with_the_input_and_the_command_which_prepares_the_same_rows_again(
    html: str, dataset: Path, corpus: Path, tmp_path: Path
):
    text = " ".join(" ".join(Page(html).text).split())
    splits = open_dataset(str(dataset))
    command = prepare_command(splits[0], "OUT")
    assert command in text and "tokenmill browse OUT" in text
    assert "--parse_special_tokens" not in command and "--shard_size 300" in command
    assert text.index(corpus.name) < text.index("of text")
    again = prepare_command(splits[0], str(dataset)).partition("--output")[0]
    prepare.main([*shlex.split(again)[2:], "--output", str(tmp_path / "again")])
    first, second = (
        json.loads((folder / "train/manifest.json").read_bytes()) for folder in (dataset, tmp_path / "again")
    )
    assert first["fingerprint"] == second["fingerprint"]


def test_sources_of_a_mixture_have_their_weights_and_rows(tmp_path: Path, tokenizer_folder: Path, documents):
    for folder, count in (("books", 300), ("web", 90)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("\n".join(documents[:count]), encoding="utf-8")
    out = tmp_path / "out"
    mix = f"{tmp_path}/books/*.txt*2.5,{tmp_path}/web/*.txt*1"
    options = ["--tokenizer", str(tokenizer_folder), "--output", str(out), "--max_length", "64"]
    prepare.main(["--mix", mix, "--unit_bytes", "4000", *options])
    [split] = open_dataset(str(out))
    text = " ".join(" ".join(Page((out / "report.html").read_text(encoding="utf-8")).text).split())
    found = re.search(
        r"books/\s+([\d,]+)\s+\S+ kB\s+2\.5×\s+([\d,]+)\s.*?web/\s+([\d,]+)\s+\S+ kB\s+1×\s+([\d,]+)\s", text
    )
    units, rows, web_units, web_rows = (int(number.replace(",", "")) for number in found.groups())
    # Units of both folders, and the tails, are counted on their own.
    assert (
        units + web_units <= len(split.units)
        and 0 < web_rows < rows < rows + web_rows <= split.manifest["num_records"]
    )


def test_a_small_split_has_no_histogram_and_code_has_a_font_of_equal_widths(
    tmp_path: Path, tokenizer_folder: Path
):
    source = tmp_path / "code.py"
    source.write_text("def f(x):\n    return x\n\n" * 40)
    out = tmp_path / "out"
    prepare.main(arguments(source, tokenizer_folder, out, "--document", "file", "--max_length", "8"))
    html = (out / "report.html").read_text(encoding="utf-8")
    text = " ".join(Page(html).text)
    assert "train: too few documents for a histogram" in text and "Length in tokens" not in text
    assert '<div class="text mono"' in html


def test_no_dataset(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder, or it is empty"):
        report.main([str(tmp_path)])


def test_quantiles_lie_where_the_counts_say():
    histogram = Histogram("a", [0, 10, 20, 40], [50, 25, 25])
    assert [quantile(histogram, share) for share in (0.25, 0.5, 0.75, 1.0)] == [5, 10, 20, 40]


def test_sizes_in_words():
    sizes = ", ".join(map(human_bytes, (0, 999, 999_999, 1500, 2.5e9, 7.1e15)))
    assert sizes == "0 B, 999 B, 1 MB, 1.5 kB, 2.5 GB, 7.1 PB"
