"""A foreign dataset with hostile values in any of its JSON files is refused by every verb, which touches nothing else.

Checksums are recomputed, as by a forger.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.__main__ import run
from beam_pipeline.checks.split import examine_split
from beam_pipeline.dataset.own_files import inspect_output
from beam_pipeline.steps.convert import converted_manifest
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import convert, inspection, prepare, report, verify
from beam_pipeline.verbs.analysis import _instances
from beam_pipeline.views import tracing
from beam_pipeline.views.reading import open_dataset, open_split
from beam_pipeline.views.tracing import NotTraced, Tracer, TraceTooSlow
from tests.beam_pipeline.runs import arguments
from tokenmill_reader import Dataset
from tokenmill_reader.errors import DatasetError
from tokenmill_reader.format.inputs import describe_inputs, encode_inputs
from tokenmill_reader.format.manifest import describe_file, with_checksum
from tokenmill_reader.format.names import INPUTS, MANIFEST, STATISTICS, UNITS

NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED]

HOSTILE = {
    "a path": "../../outside",
    "an absolute path": "/outside",
    "no text": "",
    "control characters": "a\x00\x1b[2J\nb",
    "a large number": 10**30,
    "a negative number": -1,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "null": None,
    "true": True,
    "an object": {"a": 1},
    "a list": [1, "a"],
    "nested lists": NESTED,
    "a long text": "x" * 100_000,
}


@pytest.fixture(scope="module")
def pristine_dataset(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], tokenizer_folder: Path
) -> Path:
    """A dataset of two splits, with every feature, and the options of the input that manifests may lack."""
    folder = tmp_path_factory.mktemp("hostile")
    source = folder / "source.jsonl"
    source.write_text("".join(json.dumps({"text": text.split(" ")}) + "\n" for text in documents[:40]))
    options = ["--splits", "train=0.7,validation=0.3", "--num_shards", "2", "--segment_ids", "--position_ids"]
    size_options = ["--max_length", "32", "--unit_bytes", "4000", "--dedup", "exact"]
    size_options += ["--encoding", "cp1252", "--encoding_errors", "replace", "--text_separator", " "]
    prepare.main(arguments(source, tokenizer_folder, folder / "out", *options, *size_options))
    return folder / "out"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value within a JSON value. Of a list, only the first and the last item are followed."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for index in sorted({0, len(value) - 1}):
            yield from places(value[index], (*path, index))


def replace_value(value: Any, path: tuple[Any, ...], value_at_path: Any) -> Any:
    """Returns a copy with another value at a path."""
    if not path:
        return value_at_path
    container = copy.copy(value)
    container[path[0]] = replace_value(value[path[0]], path[1:], value_at_path)
    return container


def forge(split: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest with correct checksums of itself and of the split's other files."""
    if isinstance(manifest.get("files"), list):
        for entry in manifest["files"]:
            if isinstance(entry, dict) and entry.get("path") in (STATISTICS, UNITS):
                entry |= describe_file(entry["path"], (split / entry["path"]).read_bytes())
    (split / MANIFEST).write_bytes(with_checksum({k: v for k, v in manifest.items() if k != "checksum"}))


def verbs(out: Path) -> list[Callable[[], object]]:
    """The command lines that read a foreign dataset."""

    def inspect_record() -> None:
        inspection.main([str(out), "--record", "train:0:1"])

    def report_to_memory() -> None:
        report.write_report(str(out))

    def read_rows() -> None:
        dataset = Dataset.open(out / "train")
        if len(dataset):
            dataset[[0, -1]]
        dataset.verify()

    def convert_plan() -> None:
        for split in open_dataset(str(out)):
            converted_manifest(split.manifest, {"output_format": "parquet"})

    def analyze_plan() -> None:
        for split in open_dataset(str(out)):
            names = ("input_ids", "input_ids_count")
            list(_instances(split.statistics(), names))

    return [
        lambda: verify.main([str(out)]),
        lambda: inspection.main([str(out)]),
        inspect_record,
        report_to_memory,
        convert_plan,
        analyze_plan,
        read_rows,
        lambda: inspect_output(str(out)),
    ]


def problems(out: Path, case: str) -> list[str]:
    """Runs all verbs; returns a message for each that ends with an error other than those for users."""
    messages = []
    for number, verb in enumerate(verbs(out)):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                verb()
        except (DataError, UsageError, DatasetError):
            pass
        except Exception as error:
            messages.append(f"{case}: verb {number} raises {error!r:.200}")
    return messages


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


PARTS = [0, *(pytest.param(part, marks=pytest.mark.wide) for part in range(1, len(HOSTILE)))]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", [MANIFEST, STATISTICS, UNITS, INPUTS])
def test_a_hostile_value_in_any_field_is_an_error_for_users(
    pristine_dataset: Path, tmp_path: Path, name: str, part: int
) -> None:
    """A part gives each field one of the values, different ones for neighbouring fields."""
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "a" / "b" / "out"))
    split, before = out / "train", names(tmp_path)
    manifest = json.loads((split / MANIFEST).read_bytes())
    path = out / name if name == INPUTS else split / name
    in_lines = name in (UNITS, INPUTS)
    lines = [
        json.loads(line) for line in (path.read_bytes().splitlines() if in_lines else [path.read_bytes()])
    ]
    failures = []
    for number in sorted({0, len(lines) - 1}):
        for index, place in enumerate(places(lines[number])):
            kind, value = list(HOSTILE.items())[(index + part) % len(HOSTILE)]
            records = [*lines[:number], replace_value(lines[number], place, value), *lines[number + 1 :]]
            if name == INPUTS:
                path.write_text("\n".join(map(json.dumps, records)) + "\n")
                inputs = manifest["inputs"] | describe_file("../inputs.jsonl", path.read_bytes())
                inputs["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
                forge(split, manifest | {"inputs": inputs})
            elif name != MANIFEST:
                path.write_text("\n".join(map(json.dumps, records)) + "\n")
                forge(split, copy.deepcopy(manifest))
            elif place:
                forge(split, copy.deepcopy(records[0]))
            else:
                (split / MANIFEST).write_text(json.dumps(value))
            failures += problems(out, f"{name} line {number} {'.'.join(map(str, place))} is {kind}")
    assert failures == []
    assert names(tmp_path) == before


@pytest.mark.parametrize("field", ["split", "splits", "files", "shards", "tokenizer"])
def test_a_name_that_leads_out_of_the_dataset_is_not_written_to(
    pristine_dataset: Path, tmp_path: Path, field: str
) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "in" / "out"))
    (tmp_path / "in" / ".ssh").mkdir()
    manifest = json.loads((out / "train" / MANIFEST).read_bytes())
    if field == "split":
        (out / "train").rename(out / "x")
        (out / "x" / MANIFEST).write_bytes((out / "x" / MANIFEST).read_bytes())
        manifest |= {"split": "../.ssh", "splits": ["../.ssh", "validation"]}
        split = out / "x"
    else:
        split = out / "train"
    if field == "splits":
        manifest["splits"] = ["train", "../.ssh"]
    if field == "files":
        manifest["files"][0]["path"] = "../../../.ssh/config"
    if field == "shards":
        manifest["shards"][0]["name"] = "../../.ssh/train-00000-9.tfrecord"
    if field == "tokenizer":
        manifest["tokenizer"]["files"][0]["path"] = "../../.ssh/config"
    forge(split, manifest)
    before = names(tmp_path)
    with pytest.raises((DataError, UsageError)):
        convert.main([str(out), "--output_format", "parquet", "--output", str(tmp_path / "in" / "made")])
    assert names(tmp_path) == before


def _set(*places: tuple[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for place, new_value in places:
            *parent_keys, last_key = place.split(".")
            target = value
            for key in parent_keys:
                target = target[int(key)] if isinstance(target, list) else target[key]
            target[int(last_key) if isinstance(target, list) else last_key] = new_value

    return change


def _edges(make: Callable[[int], float]) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for name in ("document_tokens", "document_bytes", "document_bytes_per_token", "row_fill"):
            value[name]["edges"] = [make(index) for index in range(len(value[name]["edges"]))]

    return change


def _many_bins(value: dict[str, Any]) -> None:
    value["document_tokens"] |= {"counts": [1] * 10_000, "edges": list(range(10_001))}


# Values of the right form that contradict others.
CONTRADICTIONS = {
    "the pad id": (MANIFEST, _set(("tokenizer.special_token_ids.pad", 10**6))),
    "a control id": (MANIFEST, _set(("tokenizer.control_ids", [10**6]))),
    "empty shards": (MANIFEST, _set(("shards.0.bytes", 0), ("shards.1.bytes", 0))),
    "no shards": (MANIFEST, _set(("shards", []))),
    "infinite shares": (MANIFEST, _set(("config.splits", [["train", 1e308], ["validation", 1e308]]))),
    "a negative share": (MANIFEST, _set(("config.splits", [["train", -1.0], ["validation", 2.0]]))),
    "a split many times": (MANIFEST, _set(("splits", ["train"] * 1000))),
    "no such encoding": (MANIFEST, _set(("config.encoding", "no-such"))),
    "NUL as encoding": (MANIFEST, _set(("config.encoding", "a\0b"))),
    "no text as format": (MANIFEST, _set(("output_format", []))),
    "no such errors": (MANIFEST, _set(("config.encoding", "ascii"), ("config.encoding_errors", "x"))),
    "edges of 0": (STATISTICS, _edges(lambda index: 0.0)),
    "negative edges": (STATISTICS, _edges(lambda index: -1e300)),
    "descending edges": (STATISTICS, _edges(lambda index: 1.0 - index)),
    "no bins": (STATISTICS, _set(("document_tokens.counts", []), ("document_tokens.edges", [0]))),
    "targets without their histograms": (MANIFEST, _set(("totals.targets", 1))),
    "many bins": (STATISTICS, _many_bins),
    "a negative part of a unit": (UNITS, _set(("share", -1e300))),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_values_that_contradict_others_are_an_error_for_users(
    pristine_dataset: Path, tmp_path: Path, kind: str
) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    name, change = CONTRADICTIONS[kind]
    split = out / "train"
    first, *other_lines = (
        (split / name).read_bytes().splitlines() if name == UNITS else [(split / name).read_bytes()]
    )
    value = json.loads(first)
    change(value)
    if name != MANIFEST:
        (split / name).write_bytes(b"\n".join([json.dumps(value).encode(), *other_lines]) + b"\n")
    forge(split, value if name == MANIFEST else json.loads((split / MANIFEST).read_bytes()))
    assert problems(out, kind) == []
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(DataError):
        report.write_report(str(out))


def test_a_config_that_is_no_object_is_named_once(pristine_dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    forge(out / "train", json.loads((out / "train" / MANIFEST).read_bytes()) | {"config": "text"})
    (defect,) = examine_split(str(out / "train")).defects
    assert defect.endswith("config is 'text', not an object")


def test_a_unit_that_is_larger_than_it_says_is_not_read_to_its_end(
    pristine_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_LEAST_ROWS", 1 << 30)  # as for the last row of a unit with many
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    path = out / "train" / UNITS
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for unit in lines[:-1]:
        unit |= {"bytes": 1, "parts": unit["parts"] * 1000}
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    forge(out / "train", json.loads((out / "train" / MANIFEST).read_bytes()))
    split = next(split for split in open_dataset(str(out)) if split.name == "train")
    with pytest.raises(TraceTooSlow, match="more than"):
        Tracer(split).trace(split.origin(0, 0), split.row(0, 0), max_bytes=100)


@pytest.mark.parametrize("name", ["train/statistics.json", "train/units.jsonl", "tokenizer/tokenizer.json"])
def test_files_that_are_larger_than_listed_are_not_read(
    pristine_dataset: Path, tmp_path: Path, name: str
) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    with (out / name).open("wb") as file:
        file.truncate(1 << 43)  # sparse
    with pytest.raises(DataError, match=f"{name}: 8796093022208 bytes"):
        report.write_report(str(out))


def test_a_manifest_of_exabytes_ends_without_a_traceback(
    pristine_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    with (out / "train" / MANIFEST).open("wb") as file:
        file.truncate(1 << 43)  # sparse
    assert run("inspect", [str(out)]) == 1
    assert "Cannot allocate memory" in caplog.text
    assert run("verify", [str(out)]) == 1
    assert "has 1 defect" in caplog.text
    with pytest.raises(DatasetError, match="too large for the memory"):
        Dataset.open(out / "train")


def test_a_decoder_that_fills_the_memory_is_refused(pristine_dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    path = out / "tokenizer" / "tokenizer.json"
    parts = json.loads(path.read_bytes())
    step = {"type": "Replace", "pattern": {"Regex": "."}, "content": "A" * 10}
    path.write_text(json.dumps(parts | {"decoder": {"type": "Sequence", "decoders": [step] * 9}}))
    with pytest.raises(DataError, match="its decoder makes texts up to 2,357,947,691 times as long"):
        open_dataset(str(out))[0].decoder()


def test_a_decoder_that_panics_is_an_error_for_users(pristine_dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    path = out / "tokenizer" / "tokenizer.json"
    decoder = {"type": "Strip", "content": "x", "start": 10**18, "stop": 10**18}
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"decoder": decoder}))
    with pytest.raises(DataError, match=r"tokenizer\.json cannot decode its rows: index out of bounds"):
        open_dataset(str(out))[0].decoder().texts([[token] for token in range(300)])


def test_sources_on_unknown_file_systems_are_not_traced(pristine_dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(pristine_dataset, tmp_path / "out"))
    path, manifest = out / "train" / UNITS, json.loads((out / "train" / MANIFEST).read_bytes())
    [file] = [json.loads(line) for line in (out / INPUTS).read_bytes().splitlines()]
    data = encode_inputs([("foo://x/y", file["bytes"])])
    (out / INPUTS).write_bytes(data)
    manifest["inputs"] = describe_inputs(data, files=1, input_bytes=file["bytes"])
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for unit in lines[:-1]:
        unit |= {"root": "", "parts": [["foo://x/y", *part[1:]] for part in unit["parts"]]}
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    forge(out / "train", manifest)
    split = open_split(str(out / "train"))
    with pytest.raises(NotTraced, match="cannot be read"):
        Tracer(split).trace(split.origin(0, 0), split.row(0, 0))
