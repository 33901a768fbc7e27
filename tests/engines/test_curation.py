"""Curation on engines: the bytes of a local run, also if a task manager is killed within one of its steps."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.beam_pipeline.near_corpora import edited
from tests.beam_pipeline.runs import content
from tests.end_to_end.conftest import WIKITEXT, Pipeline
from tests.engines.clusters import Flink
from tests.engines.conftest import Engine
from tests.engines.launched import CURATION_STAGES, Run
from tests.engines.small_limits import BYTES, LIMITS
from tests.engines.test_faults import assert_whole, outlive_killed_task_manager
from tests.engines.test_same_bytes import Record, describe_parallelism, record

pytestmark = pytest.mark.skipif(not WIKITEXT.exists(), reason="needs WikiText in ../shared/corpora")

UNITS = 40
FUNCTION = "tests.engines.filter_functions:few_digits"
BOILERPLATE = (
    "Home | About | Contact | Help",
    "We use cookies to improve our site.",
    "Write to info@example.com if you have a question!",
)


class Verb(NamedTuple):
    """A verb with its arguments but the output, and the files that the in-process runner writes."""

    arguments: list[object]
    expected: dict[str, bytes]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Paragraphs of WikiText with planted boilerplate, changed copies, and items of the benchmark beside them."""
    folder, rng = tmp_path_factory.mktemp("web"), random.Random(4)
    lines = [
        line.strip() for line in WIKITEXT.read_text(encoding="utf-8").splitlines() if len(line.split()) > 40
    ]
    vocabulary = sorted({word for line in lines for word in line.split() if word.isalpha()})
    items = [" ".join(rng.sample(vocabulary, 20)) for _ in range(20)]
    texts = []
    for number, line in enumerate(lines):
        texts.append("\n".join([line, rng.choice(BOILERPLATE)] if number % 3 == 0 else [line]))
        if number % 4 == 0:
            texts.append(edited(rng.choice(lines), 0.01, rng))
        if number % 50 == 0:
            texts.append(f"{rng.choice(lines)} {rng.choice(items).upper()}.")
    for name, records in (
        ("web", [{"text": text} for text in texts]),
        ("bench", [{"question": item} for item in items]),
    ):
        content = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(content, encoding="utf-8")
    return folder / "web.jsonl"


@pytest.fixture(scope="module")
def verbs(
    web: Path, tokenizer: Path, run_successfully: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Verb]:
    """`prepare` with filters and comparisons of documents, `annotate`, and `prepare` with its attributes."""
    folder = tmp_path_factory.mktemp("expected")
    source = ["--input", web, "--unit_bytes", web.stat().st_size // UNITS]
    rows = [
        "--tokenizer",
        tokenizer,
        "--splits",
        "train=0.9,test=0.1",
        "--max_length",
        64,
        "--shard_size",
        100,
    ]
    commands: dict[str, list[object]] = {
        "filters": [
            *(
                "prepare",
                *source,
                *rows,
                "--filter",
                f"gopher_repetition,c4,pii,{FUNCTION}",
                "--dedup",
                "near+paragraphs",
                "--paragraph_min_words",
                "4",
            ),
            *("--thresholds", "c4.min_sentences=2", "--decontaminate", web.with_name("bench.jsonl")),
            *("--decontaminate_fields", "question"),
        ],
        "annotate": ["annotate", *source, "--measure", f"gopher,fineweb,pii,{FUNCTION}"],
        "keep": [
            *("prepare", *source, *rows, "--attributes", folder / "annotate"),
            *("--keep", "gopher_words >= 60 and pii_email == 0 and digits < 0.05"),
        ],
    }
    verbs = {}
    for name, command in commands.items():
        run_successfully(*command, "--output", folder / name)
        verbs[name] = Verb(command, content(folder / name))
    return verbs


@pytest.mark.parametrize("name", ["filters", "annotate", "keep"])
@pytest.mark.parametrize(
    "engine",
    ["Flink", *(pytest.param(name, marks=pytest.mark.wide) for name in ("Spark", "Prism"))],
    indirect=True,
)
def test_curation_writes_what_the_in_process_runner_writes(
    engine: Engine,
    name: str,
    verbs: dict[str, Verb],
    run_successfully: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
) -> None:
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, BYTES)
    features = {
        "filters": "`prepare --filter --decontaminate --dedup near+paragraphs`",
        "annotate": "`annotate`",
        "keep": "`prepare --keep`",
    }
    record(record_property, engine, features[name], describe_parallelism(engine))
    verb = verbs[name]
    if name == "filters":
        [benchmark] = json.loads(verb.expected["removed/_contamination.json"])["benchmarks"]
        manifest = json.loads(verb.expected["train/manifest.json"])
        assert benchmark["documents"] > 20 and manifest["removed"].keys() > {"near", "decontaminate", "c4"}
        assert any("paragraphs" in rules for rules in manifest["edited"])
    run_successfully(*verb.arguments, "--output", tmp_path / "out", *engine.options(2))
    assert content(tmp_path / "out") == verb.expected
    record_property("result", "the same bytes")


@pytest.fixture
def start(flink: Flink, verbs: dict[str, Verb], tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    """Returns a function that starts a verb with parallelism 2. Its processes end with the test."""
    with contextlib.ExitStack() as stack:

        def start_run(name: str) -> Run:
            run = Run(
                [*verbs[name].arguments, *flink.options(2)], tmp_path / "out", "tests.engines.small_limits"
            )
            stack.callback(run.kill)
            return run

        yield start_run
    flink.end_jobs()
    flink.pool.kill_workers()


KILLS = [
    ("filters", "searching for n-grams"),
    ("annotate", "annotating"),
    *(
        pytest.param("filters", stage, marks=pytest.mark.wide)
        for stage in (
            *(
                "GroupParagraphs",
                "JoinParagraphs",
                "sketching documents",
                "FindEqualSets",
                "ProposePairs",
                "RemoveNearDuplicates/Compare",
            ),
            *("LargeStar1", "JoinRemoved"),
        )
    ),
]


@pytest.mark.parametrize(("name", "stage"), KILLS)
def test_a_killed_task_manager_changes_no_byte(
    name: str,
    stage: str,
    flink: Flink,
    start: Callable[[str], Run],
    verbs: dict[str, Verb],
    record_property: Record,
) -> None:
    where = stage if stage in CURATION_STAGES else f"in the step {stage}"
    verb = "`annotate`" if name == "annotate" else "`prepare --decontaminate --dedup near+paragraphs`"
    record(record_property, flink, verb, f"a task manager is killed {where}")
    run = start(name)
    if stage in CURATION_STAGES:
        run.wait_for(stage)
        step = CURATION_STAGES[stage].step
    else:
        run.wait_for_step(flink, stage)
        step = stage
    outlive_killed_task_manager(flink, run, step)
    if name == "annotate":
        assert content(run.output) == verbs[name].expected
    else:
        assert_whole(run.output, verbs[name].expected)
    record_property("result", "the other one takes over: the same bytes")
