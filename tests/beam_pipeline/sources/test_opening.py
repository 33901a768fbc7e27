"""The numbers of requests and bytes that reading from Cloud Storage takes."""

from __future__ import annotations

import gzip
import random
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.support.errors import DataError
from tests.google_cloud.gcs import Gcs

MIB = 1 << 20


def read_units(gcs: Gcs, config: InputConfig) -> list[tuple[list[str], int, list[str]]]:
    """Returns for each unit its texts, and the number of bytes and the requests that it took to read them."""
    result = []
    for unit in plan(config).units:
        gcs.requests.clear()
        before = gcs.bytes_read
        texts = [text for batch in read_unit(unit, config) for text in batch.texts]
        result.append((texts, gcs.bytes_read - before, [call for call in gcs.requests if "/o/" in call]))
    return result


@pytest.mark.parametrize("document", ["line", "paragraph"])
def test_a_unit_of_text_is_downloaded_once(gcs: Gcs, document: str) -> None:
    rng = random.Random(0)
    end = "\n" if document == "line" else "\n\n"
    texts = [f"{number} " + "x" * rng.randrange(2000) for number in range(48 << 10)]
    gcs.put("gs://data/a.txt", "".join(text + end for text in texts).encode())
    units = read_units(gcs, InputConfig(input=("gs://data/a.txt",), document=document, unit_bytes=16 * MIB))
    assert [text for result, _, _ in units for text in result] == texts
    assert len(units) == 3
    for _, downloaded, requests in units:
        assert downloaded < 1.05 * 16 * MIB
        assert len(requests) <= 4


def test_small_files_take_a_request_each_and_are_read_ahead(gcs: Gcs) -> None:
    contents = {f"gs://data/small/{number:03d}.txt": f"text {number}\n" for number in range(100)}
    contents |= {f"gs://data/small/{number:03d}.txt.gz": f"packed {number}\n" for number in range(100, 110)}
    for path, content in contents.items():
        data = content.encode()
        gcs.put(path, gzip.compress(data) if path.endswith(".gz") else data)
    open_paths, most_open = set(), 0
    lock = threading.Lock()

    def count(method: str, path: str) -> None:
        nonlocal most_open
        if "/o/" not in path:  # a listing, or a request of the client for itself
            return
        with lock:
            open_paths.add(path)
            most_open = max(most_open, len(open_paths))
        time.sleep(0.02)
        with lock:
            open_paths.discard(path)

    gcs.on_request = count
    ((texts, _, requests),) = read_units(gcs, InputConfig(input=("gs://data/small/*",)))
    assert texts == [content.strip() for content in contents.values()]
    assert len(requests) == len(contents)
    assert 4 <= most_open <= 16


def test_a_column_of_a_parquet_file_is_downloaded_once(gcs: Gcs) -> None:
    rng = random.Random(0)
    texts = [rng.randbytes(500).hex() for _ in range(12_000)]
    other_column = [rng.randbytes(500).hex() for _ in range(12_000)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"a": other_column, "text": texts, "z": other_column}),
        sink,
        row_group_size=4000,
        compression=None,
    )
    gcs.put("gs://data/a.parquet", sink.getvalue().to_pybytes())
    config = InputConfig(input=("gs://data/a.parquet",), unit_bytes=4 * MIB)
    plan(config)
    assert gcs.bytes_read <= 64 << 10
    units = read_units(gcs, config)
    assert [text for result, _, _ in units for text in result] == texts
    assert len(units) == 3
    for result, downloaded, requests in units:
        assert downloaded < 1.05 * sum(map(len, result)) + (64 << 10)
        assert len(requests) <= 5


def test_a_small_parquet_file_takes_one_download(gcs: Gcs) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    for number in range(3):
        gcs.put(f"gs://data/{number}.parquet", sink.getvalue().to_pybytes())
    ((texts, _, requests),) = read_units(gcs, InputConfig(input=("gs://data/*",)))
    assert texts == ["one", "two"] * 3
    assert len(requests) == 6  # the size of each, and its bytes


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(gcs: Gcs) -> None:
    content = b"a line of some length\n" * MIB
    gcs.put("gs://data/a.txt", content)
    config = InputConfig(input=("gs://data/a.txt",))
    (unit,) = plan(config).units
    batches = read_unit(unit, config)
    next(batches)
    gcs.put("gs://data/a.txt", content.replace(b"some", b"more"))
    with pytest.raises(DataError, match=r"gs://data/a\.txt: cannot be read: .*no such generation"):
        list(batches)
