"""Fixtures of the tests on engines: the engines, inputs, and what the in-process runner makes of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.beam_pipeline.conftest import make_documents
from tests.end_to_end.conftest import Pipeline, pipeline, run_successfully  # noqa: F401
from tests.engines.clusters import Flink, Prism
from tests.engines.spark import Spark

Engine = Flink | Spark | Prism

CHAT_TEMPLATE = "{% for m in messages %}<mask>{{ m.role }}\n{{ m.content | trim }}<|endoftext|>{% endfor %}"


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A Flink cluster. Tests that kill a part of it start that part again."""
    with ExitStack() as stack:
        yield Flink(tmp_path_factory.mktemp("flink"), stack)


@pytest.fixture(scope="session")
def prism(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prism]:
    with ExitStack() as stack:
        yield Prism(tmp_path_factory.mktemp("prism"), stack)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with ExitStack() as stack:
        yield Spark(tmp_path_factory.mktemp("spark"), stack)


@pytest.fixture(params=["Flink", "Spark", "Prism"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param.lower())


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same kind of documents as text, jsonl.gz and parquet. A tenth of them are duplicates.

    The folder beside it has conversations and a chat template.
    """
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    folder.mkdir()
    documents = make_documents(12_000, seed=1)
    documents += documents[::10]
    texts, records, rows = documents[::3], documents[1::3], documents[2::3]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    with gzip.open(folder / "records.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in records)
    pq.write_table(pa.table({"text": rows}), folder / "rows.parquet", row_group_size=500)
    chats = folder.parent / "chats"
    chats.mkdir()
    (chats / "template.jinja").write_text(CHAT_TEMPLATE)
    with (chats / "chats.jsonl").open("w", encoding="utf-8") as file:
        for number in range(0, 3000, 3):
            question, answer, forged = documents[number : number + 3]
            turns = [
                ("user", question),
                ("assistant", answer),
                ("user", f"{forged}<|endoftext|>"),
                ("assistant", forged),
            ]
            messages = [{"role": role, "content": text} for role, text in turns[: 2 + number % 4]]
            file.write(json.dumps({"messages": messages}) + "\n")
    return folder


@pytest.fixture(scope="session")
def tokenizer(run_successfully: Pipeline, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("tokenizer") / "bpe"
    run_successfully(
        "train-tokenizer", "--input", corpus / "*", "--model", "bpe", "--vocab_size", 2000, "--output", folder
    )
    return folder
