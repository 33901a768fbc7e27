"""The pages over HTTP: what they show, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import decoders

from beam_pipeline.verbs import convert, prepare
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.browsing.conftest import ROOT, Client
from tests.beam_pipeline.runs import arguments
from tests.beam_pipeline.verbs.test_report import Page


def wide(value: str):
    return pytest.param(value, marks=pytest.mark.wide)


def tags_of(client: Client, path: str) -> list[tuple[str, dict]]:
    response, body = client.request(path)
    assert response.status == 200, body
    return Page(body).tags


def links(client: Client, path: str) -> list[str]:
    return [attributes["href"] for tag, attributes in tags_of(client, path) if tag == "a"]


def test_every_link_of_the_first_pages_leads_to_a_page(client: Client):
    seen, queue = (
        set(),
        [ROOT, f"{ROOT}row/train/7", f"{ROOT}document/train/0/3", f"{ROOT}rows?text=a&first=9"],
    )
    while queue and len(seen) < 120:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for link in links(client, path):
            queue.append(
                link
                if link.startswith("/")
                else path.partition("?")[0] + link
                if link[0] == "?"
                else ROOT + link
            )
    assert len(seen) == 120


def test_the_overview_has_the_manifests_figures(client: Client, dataset: Path):
    text = client.text("")
    for split in open_dataset(str(dataset)):
        assert all(f"{split.manifest['totals'][name]:,}" in text for name in ("documents", "tokens", "rows"))
    assert "143" in text and "tokenmill prepare --input" in text


def test_a_row_has_its_tokens_and_leads_to_its_documents_and_back(
    client: Client, dataset: Path, corpus: Path
):
    split = open_dataset(str(dataset))[0]
    row, origin = split.row(0, 7), split.origin(0, 7)
    tags = tags_of(client, "row/train/7")
    titles = [values["title"] for tag, values in tags if tag in ("i", "b") and "title" in values]
    ids = [int(number) for title in titles for number in re.match(r"ids? ([\d ]+) ·", title)[1].split()]
    assert ids == row.ids.tolist()
    documents = [values["href"] for tag, values in tags if tag == "a" and "/document/" in values["href"]]
    assert documents and all(
        link.startswith(f"{ROOT}document/train/{origin.units[0].index}/") for link in documents
    )
    lines = corpus.read_bytes()
    for link in documents:
        assert f"{ROOT}row/train/7" in links(client, link)
        place = re.search(r"corpus\.txt, line (\d+) \(byte (\d+)\)", client.text(link))
        assert lines[: int(place[2])].count(b"\n") + 1 == int(place[1])


def test_each_row_is_between_its_neighbours_in_the_source(client: Client, dataset: Path):
    split = open_dataset(str(dataset))[0]
    html = client.request("row/train/7")[1]
    following = int(re.search(r'row/train/(\d+)">↓ in the source', html)[1])
    assert split.origin(*divmod(following, 300)).rank == split.origin(0, 7).rank + 1


def test_the_documents_of_a_unit_are_those_of_the_source(
    client: Client, dataset: Path, corpus: Path, documents
):
    listed, path = [], f"{ROOT}documents"
    while path:
        html = client.request(path)[1]
        listed += [int(byte.replace(",", "")) for byte in re.findall(r"corpus\.txt, byte ([\d,]+)", html)]
        following = re.search(r'rel="next" href="([^"]+)"', html)
        path = following and ROOT + following[1].replace("&amp;", "&")
    total = open_dataset(str(dataset))[0].manifest["totals"]["documents"]
    assert listed == sorted(set(listed)) and len(listed) == total
    lines = corpus.read_bytes()
    assert all(lines[byte:].partition(b"\n")[0].decode() in documents for byte in listed[::50])


def test_documents_are_filtered(client: Client):
    assert "among the documents" in client.text("documents?min=50&max=60")
    numbers = re.findall(r"document \d+ (\d+) tokens", client.text("documents?min=50&max=60"))
    assert numbers and all(50 <= int(number) <= 60 for number in numbers)
    assert "No file of the input has nowhere" in client.text("documents?source=nowhere")


def test_a_search_says_how_much_it_has_read(client: Client):
    assert re.search(
        r"20 matches in the \d+ rows read \(0 to \d+ of [\d,]+, [\d.]+%\)", client.text("rows?text=a")
    )
    nothing = client.text("rows?text=zzzzzz")
    assert "0 matches" in nothing and "100.0%" in nothing and "Continue" not in nothing


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("row/train/99999", 404, "train has the rows 0 to"),
        ("row/test/0", 404, "no split 'test', only train, validation"),
        ("rows?split=test", 404, "no split 'test'"),
        ("row/train/x", 404, "no such page"),
        ("document/train/999/0", 404, "has the work units 0 to"),
        ("document/train/0/99999", 404, "so there is no number 99,999"),
        ("documents?unit=999", 404, "There is no work unit 999"),
        ("bad", 404, "has not recorded any bad records"),
        ("rows?first=-1", 400, "first is '-1'"),
        ("rows?min=many", 400, "min is 'many'"),
        ("row/train/0?from=99999", 400, "there are only"),
        (f"rows?{'&'.join('a=1' for _ in range(99))}", 400, "cannot be parsed"),
        ("../../etc/passwd", 404, "no such page"),
        ("browse.css/../../site.py", 404, "no such page"),
        ("%2e%2e/manifest.json", 404, "no such page"),
        ("/", 404, "the whole address"),
        ("/rows", 404, "the whole address"),
        ("//secret/", 404, ""),
    ],
)
def test_what_does_not_exist_is_a_page_with_the_reason(client: Client, path: str, status: int, reason: str):
    if path == "//secret/":  # http.server takes it for /secret/
        status = 200
    assert reason in client.text(path, status)


def test_only_requests_to_this_machine_by_name_are_answered(client: Client):
    for host in ("127.0.0.1", "localhost:9000", "LOCALHOST", f"127.0.0.1:{client.port}", "[::1]:80"):
        assert client.request("", Host=host)[0].status == 200, host
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8000",
        "localhost.",
        "127.0.0.1@evil",
        "",
    ):
        response, body = client.request("", Host=host)
        assert response.status == 403 and "127.0.0.1" in body and "corpus" not in body


def test_answers_forbid_what_the_pages_do_not_need(client: Client):
    for path in ("", "row/train/0", "browse.js", "nothing"):
        headers = client.request(path)[0].headers
        policy = headers["Content-Security-Policy"]
        assert (
            policy.startswith("default-src 'none'")
            and "unsafe" not in policy
            and "frame-ancestors 'none'" in policy
        )
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in headers
    for tag, attributes in tags_of(client, "row/train/0"):
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert tag != "style" and (tag != "script" or attributes["src"] == f"{ROOT}browse.js")
        for name in ("src", "href", "action"):
            assert "//" not in attributes.get(name, "")


def test_head_is_get_without_a_body_and_nothing_can_be_written(client: Client):
    get, head = client.request("row/train/0"), client.request("row/train/0", "HEAD")
    assert head[1] == "" and head[0].headers["Content-Length"] == get[0].headers["Content-Length"]
    assert {client.request("", method)[0].status for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {501}


def test_many_requests_at_once_get_what_each_gets_alone(client: Client):
    paths = [f"row/train/{number}" for number in range(0, 40, 3)] + [
        "documents?unit=1",
        "rows?text=a",
        "documents",
    ]
    alone = [client.request(path)[1] for path in paths]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda path: client.request(path)[1], paths * 3)) == alone * 3


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "out")


def test_a_damaged_shard_is_named_and_the_other_rows_can_be_read(serve: Callable[[Path], Client], copy: Path):
    client = serve(copy)
    assert client.text("row/train/0")
    [shard] = copy.glob("train/train-00000-*.tfrecord")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    statuses = [client.request(f"row/train/{number}")[0].status for number in range(300)]
    [record] = [number for number, status in enumerate(statuses) if status == 500]
    assert f"{shard}: record {record}" in client.text(f"row/train/{record}", 500)
    assert client.text("row/train/299")
    shard.write_bytes(data[:100])
    assert "manifest specifies" in client.text("row/train/299", 500)
    assert "The dataset cannot be read" in client.text("rows", 500)


def test_a_dataset_that_is_deleted_or_written_anew_is_noticed(
    serve: Callable[[Path], Client], copy: Path, corpus, tokenizer_folder
):
    client = serve(copy)
    client.text("row/train/0")
    shutil.rmtree(copy)
    assert "no longer a finished dataset" in client.text("row/train/0", 500)
    prepare.main(
        arguments(
            corpus, tokenizer_folder, copy, "--max_length", "64", "--splits", "train=0.9,validation=0.1"
        )
    )
    assert "of 64 tokens" in client.text("")
    assert client.text("row/train/0").count("position") == 0


def test_what_else_is_damaged_is_named(serve: Callable[[Path], Client], copy: Path):
    for name, path in (("train/units.jsonl", "row/train/0"), ("tokenizer/tokenizer.json", "rows")):
        client = serve(copy)  # which reads each when it is first needed
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(b"{}")
        assert f"{copy / name}" in client.text(path, 500)
        (copy / name).write_bytes(content)
        assert client.text(path)
    (copy / "train" / "manifest.json").write_text("{}")
    assert f"{copy}/train/manifest.json" in client.text("", 500)


def test_an_empty_split_has_pages(serve: Callable[[Path], Client], tmp_path: Path, tokenizer_folder: Path):
    source = tmp_path / "one.txt"
    source.write_text("the only document\n")
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", "--splits", "a=0.5,b=0.5"))
    client = serve(tmp_path / "out")
    [empty] = [s.name for s in open_dataset(str(tmp_path / "out")) if not s.manifest["num_records"]]
    assert "There are no rows." in client.text(f"rows?split={empty}") + client.text(
        f"rows?split={empty}&text=a"
    )
    assert "has no documents in this split" in client.text(f"documents?split={empty}")
    assert f"{empty} has no rows: it is empty" in client.text(f"row/{empty}/0", 404)


def test_requests_that_are_no_http_do_no_harm(client: Client):
    for request in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"a" * 70_000, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
            connection.sendall(request + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" * (len(request) > 99))
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while data := connection.recv(1 << 16):
                answer += data
            assert b" 200 " not in answer and b"corpus" not in answer
    assert client.text("")


def test_without_its_source_the_rows_are_shown_and_the_documents_have_a_reason(
    serve: Callable[[Path], Client], tmp_path: Path, tokenizer_folder: Path
):
    source = tmp_path / "gone.txt"
    source.write_text("some text of a file\n" * 50)
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", "--max_length", "16"))
    client = serve(tmp_path / "out")
    assert "gone.txt, byte" in client.text("row/train/0") and "byte" in client.text("documents")
    source.unlink()
    client = serve(tmp_path / "out")
    assert "no longer exists" in client.text("row/train/0")
    assert "no longer exists" in client.text("documents", 409)
    source.write_text("same size another text\n" * 50)
    os.truncate(source, 1000)
    assert "now gives other" in client.text("documents", 409)


def test_hostile_text_is_only_text(
    serve: Callable[[Path], Client], tmp_path: Path, save: Callable[..., Path]
):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&lt;\x00\x1b[2J\u202e\u2066</i></div>"
    source = tmp_path / "<b onload=x>.jsonl"
    lines = [json.dumps({"text": evil}), "{broken <script>\x1b", json.dumps({"text": "é😀" * 3000})]
    source.write_text("\n".join(lines) + "\n")
    out = tmp_path / "<i>out"
    options = ["--max_length", "4096", "--packing", "best_fit"]
    options += ["--on_bad_record", "skip", "--max_bad_ratio", "1"]
    tokenizer = save("bpe-gpt2", lambda each: setattr(each, "decoder", decoders.ByteLevel()))
    prepare.main(arguments(source, tokenizer, out, *options))
    client = serve(out)
    pages = ["", "rows", "documents", "document/train/0/0", "document/train/0/1?from=2048", "bad"]
    pages += ["row/train/0", "row/train/1", "row/train/2", "rows?text=%3Cscript%3E", "rows?source=%3Cb"]
    for path in [*pages, "rows?split=%3Cscript%3E", "rows?first=%3Cscript%3E", "%3Cscript%3E"]:
        body = client.request(path)[1]
        tags = {tag for tag, _ in Page(body).tags}
        assert not tags & {"img", "b onload=x"} and body.count("<script") == 1
        assert not set("\x00\x1b\u202e\u2066") & set(body)
    listed = client.text("documents")
    assert evil[:40] in listed and r"\x00\x1b[2J\u202e\u2066" in listed
    assert "<mark>&lt;script&gt;</mark>" in client.request("rows?text=%3Cscript%3E")[1]
    assert "{broken <script>" in client.text("bad")
    html = client.request("document/train/0/1?from=2048")[1]
    assert "tokens 2,048 to 4,095 of" in html and "later tokens" in html


@pytest.mark.parametrize(
    "output_format",
    [
        "parquet",
        pytest.param("mds", marks=pytest.mark.wide),
        pytest.param("arrayrecord", marks=pytest.mark.wide),
    ],
)
def test_every_format_of_rows_has_the_same_pages(
    serve: Callable[[Path], Client], client: Client, dataset: Path, tmp_path: Path, output_format: str
):
    out = tmp_path / dataset.name
    convert.main([str(dataset), "--output_format", output_format, "--output", str(out)])
    other = serve(out)
    for path in (
        "rows?source=corpus&first=200",
        "rows?text=a&first=5",
        "document/validation/1/2",
        "documents?unit=2",
    ):
        assert other.main(path) == client.main(path) != ""


@pytest.mark.parametrize("output_format", ["megatron", wide("parquet")])
def test_whole_documents_are_records(
    serve: Callable[[Path], Client],
    tmp_path: Path,
    corpus: Path,
    documents,
    tokenizer_folder: Path,
    output_format: str,
):
    out = tmp_path / "out"
    options = ["--packing", "none", "--output_format", output_format, "--unit_bytes", "20000"]
    prepare.main(arguments(corpus, tokenizer_folder, out, *options))
    client = serve(out)
    assert f"0 to 19 of {len(documents):,} documents" in client.text("rows")
    page = client.text("row/train/500")
    byte = int(re.search(r"corpus\.txt, byte ([\d,]+) · whole", page)[1].replace(",", ""))
    assert corpus.read_bytes()[byte:].startswith(documents[500].encode())
    assert "whole document" in client.text("documents", 404)
    assert "matches in the" in client.text("rows?min=100")


def test_a_dataset_in_cloud_storage_is_browsed(
    serve: Callable[[str], Client], client: Client, dataset: Path, gcs
):
    for path in dataset.rglob("*"):
        if path.is_file():
            gcs.put(f"gs://data/out/{path.relative_to(dataset)}", path.read_bytes())
    remote = serve("gs://data/out")
    for path in ("rows?first=300", "rows?text=a&source=corpus", "document/train/0/3"):
        assert remote.main(path) == client.main(path) != ""
    assert "gs://data/out/train/train-00000" in remote.text("row/train/3")
