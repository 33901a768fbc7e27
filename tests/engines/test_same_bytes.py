"""Every engine writes the bytes that the in-process runner writes, whatever its parallelism."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beam_pipeline.runs import content
from tests.end_to_end.conftest import Pipeline
from tests.engines.conftest import Engine

Record = Callable[[str, object], None]

CASES = {
    "concat, global shuffle, three splits, text": [
        *("lines.txt", "--unit_bytes", 60_000, "--shard_size", 300),
        *("--splits", "train=0.8,validation=0.1,test=0.1"),
    ],
    "best_fit, segment ids, parquet": ["rows.parquet", "--packing", "best_fit", "--segment_ids"],
    "--dedup exact, jsonl.gz and text": ["*[lr][is]*[tz]", "--dedup", "exact", "--unit_bytes", 60_000],
    "conversations": [
        *("../chats/chats.jsonl", "--content", "conversation", "--overlong", "truncate_left"),
        *("--chat_template", "../chats/template.jinja", "--unit_bytes", 60_000),
        *("--on_bad_record", "skip", "--max_bad_ratio", 0.2),
    ],
    "infilling": [
        "lines.txt",
        "--fim_rate",
        0.5,
        "--fim_tokens",
        "<pad>,<mask>,<|endoftext|>",
        "--unit_bytes",
        60_000,
    ],
}
# Spark and Prism decide on their own parallelism.
PARALLELISMS = [("Flink", 2), ("Spark", 2), ("Prism", 2)]
PARALLELISMS += [pytest.param("Flink", count, marks=pytest.mark.wide) for count in (1, 4)]


@pytest.fixture(scope="session")
def expected(
    run_successfully: Pipeline, corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns a function that prepares a case in this process, once."""
    folder = tmp_path_factory.mktemp("expected")

    def prepare(case: str) -> Path:
        output = folder / str(list(CASES).index(case))
        if not output.exists():
            run_successfully(*arguments_of(case, corpus, tokenizer), "--output", output)
        return output

    return prepare


def arguments_of(case: str, corpus: Path, tokenizer: Path) -> list[object]:
    pattern, *options = CASES[case]
    return [
        *("prepare", "--input", corpus / str(pattern), "--tokenizer", tokenizer, "--max_length", 64),
        *("--seed", 7),
        *(corpus / option if str(option).startswith("..") else option for option in options),
    ]


@pytest.mark.parametrize(("engine", "parallelism"), PARALLELISMS, indirect=["engine"])
@pytest.mark.parametrize("case", CASES)
def test_prepare_writes_what_the_in_process_runner_writes(
    engine: Engine,
    case: str,
    parallelism: int,
    run_successfully: Pipeline,
    expected: Callable[[str], Path],
    corpus: Path,
    tokenizer: Path,
    tmp_path: Path,
    record_property: Record,
) -> None:
    local_output = expected(case)
    record(record_property, engine, f"`prepare`: {case}", describe_parallelism(engine, parallelism))
    result = run_successfully(
        *arguments_of(case, corpus, tokenizer), "--output", tmp_path / "out", *engine.options(parallelism)
    )
    assert content(tmp_path / "out") == content(local_output)
    summary = result.out.splitlines()
    assert any(line.startswith("train: ") for line in summary)
    assert "job: running\n" in result.err and "job: done\n" in result.err
    assert " documents" in result.err and " records written" in result.err
    record_property("result", "the same bytes")


def test_train_tokenizer_writes_what_the_in_process_runner_writes(
    engine: Engine,
    run_successfully: Pipeline,
    corpus: Path,
    tokenizer: Path,
    tmp_path: Path,
    record_property: Record,
) -> None:
    record(record_property, engine, "`train-tokenizer`", describe_parallelism(engine))
    run_successfully(
        *("train-tokenizer", "--input", corpus / "*", "--model", "bpe", "--vocab_size", 2000),
        *("--output", tmp_path / "out", *engine.options(2)),
    )
    assert content(tmp_path / "out") == content(tokenizer)
    record_property("result", "the same bytes")


def test_verify_on_the_engine_accepts_the_dataset(
    engine: Engine,
    run_successfully: Pipeline,
    expected: Callable[[str], Path],
    tmp_path: Path,
    record_property: Record,
) -> None:
    record(record_property, engine, "`verify`, on the engine", describe_parallelism(engine))
    result = run_successfully(
        "verify", expected(next(iter(CASES))), *engine.options(2), "--temp_location", tmp_path
    )
    assert "train" in result.out
    record_property("result", "the dataset is whole")


def test_analyze_computes_what_it_computes_after_a_local_run(
    engine: Engine,
    run_successfully: Pipeline,
    expected: Callable[[str], Path],
    corpus: Path,
    tokenizer: Path,
    tmp_path: Path,
    record_property: Record,
) -> None:
    case = next(iter(CASES))
    record(record_property, engine, "`prepare --analyze`", describe_parallelism(engine))
    local_copy = Path(shutil.copytree(expected(case), tmp_path / "local"))
    analyzed = run_successfully("analyze", local_copy).out
    result = run_successfully(
        *arguments_of(case, corpus, tokenizer), "--analyze", "--output", tmp_path / "out", *engine.options(2)
    )
    assert analyzed.count("transform_fn written; the median document has") == 3
    assert analyzed in result.out
    assert functions(tmp_path / "out") == functions(local_copy)
    record_property("result", "the same vocabulary and lengths")


def functions(dataset: Path) -> dict[str, bytes]:
    """Returns what `analyze` saved, except for TensorFlow's files, whose bytes vary."""
    return {name: data for name, data in content(dataset).items() if "transform_fn/assets/" in name}


def test_a_broken_record_gives_the_message_of_a_local_run(
    engine: Engine, corpus: Path, tokenizer: Path, tmp_path: Path, pipeline: Pipeline, record_property: Record
) -> None:
    record(record_property, engine, "`prepare`: a broken JSON record", "bad input")
    records = [f'{{"text": "document {number}"}}\n' for number in range(5000)]
    records[3000] = '{"text": "broken\n'
    (tmp_path / "broken.jsonl").write_text("".join(records))
    arguments = [
        "prepare",
        "--input",
        tmp_path / "broken.jsonl",
        "--tokenizer",
        tokenizer,
        "--unit_bytes",
        20_000,
    ]
    local_result = pipeline(*arguments, "--output", tmp_path / "local")
    result = pipeline(*arguments, "--output", tmp_path / "out", *engine.options(2))
    assert (result.status, local_result.status) == (1, 1)
    message = local_result.err.splitlines()[-1]
    assert message.startswith(f"prepare: {tmp_path}/broken.jsonl, line 3001 (byte ")
    assert result.err.splitlines()[-1] == message
    assert "Traceback" not in result.err
    assert not (tmp_path / "out" / "train" / "manifest.json").exists()
    record_property("result", "the message of a local run, no dataset")


def describe_parallelism(engine: Engine, parallelism: int = 2) -> str:
    return f"parallelism {parallelism}" if engine.name == "Flink" else "its own parallelism"


def record(record_property: Record, engine: Engine, feature: str, fault: str) -> None:
    """Records a row of the table in the docs. The test adds its result."""
    record_property("runner", engine.name)
    record_property("feature", feature)
    record_property("fault", fault)
