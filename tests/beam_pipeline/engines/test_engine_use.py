"""The summary, the manifests and the report name the engine, and what Hugging Face's `tokenizers` encoded instead."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.steps.tokenize import TokenizeUnit
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runners.test_portable import EMBEDDED
from tests.beam_pipeline.runs import arguments, content, defects
from tokenmill_reader.format.manifest import with_checksum
from tokenmill_reader.format.names import MANIFEST

OPTIONS = [
    "--splits",
    "train=0.8,validation=0.2",
    "--max_length",
    "32",
    "--unit_bytes",
    "4000",
    "--seed",
    "3",
]
TWO_WORKERS = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]

# With this tokenizer, text after an added token is encoded otherwise than text at the beginning of a document.
TOKEN, REASON = "<sep>", "special tokens in text"
INEXACT = TOKEN * 4


@pytest.fixture(scope="module")
def tokenizer_folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual folder, with `TOKEN` in addition."""
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path_factory.mktemp("tokenizer") / "inexact"))
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["pre_tokenizer"]["prepend_scheme"] = "first"
    parts["model"]["vocab"].append([TOKEN, 0.0])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    parts["added_tokens"].append({"id": len(parts["model"]["vocab"]) - 1, "content": TOKEN, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """400 documents, of which 60 have text that is left to HF, 3 are blank and 20 occur twice."""
    path = tmp_path_factory.mktemp("source") / "in.jsonl"
    texts = [f"{text} {INEXACT}x" if number % 5 == 0 else text for number, text in enumerate(documents[:300])]
    texts += [*documents[300:397], " ", "", "\n", *documents[301:321]]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def run(source: Path, tokenizer_folder: Path, tmp_path: Path):
    def run_prepare(name: str, *options: str, tokenizer: Path = tokenizer_folder) -> Path:
        prepare.main(arguments(source, tokenizer, tmp_path / name, *OPTIONS, *options))
        return tmp_path / name

    return run_prepare


def engines(dataset: Path) -> list[dict]:
    """Returns the manifests' entries about engines, which must be equal in all splits."""
    engines_by_split = [read_manifest(str(dataset / split))["engines"] for split in ("train", "validation")]
    assert engines_by_split[0] == engines_by_split[1]
    return engines_by_split[0]


def test_all_documents_are_counted_however_the_work_is_distributed(run, capsys):
    out = run("out", "--dedup", "exact")
    summary = capsys.readouterr().out
    (engine,) = engines(out)
    left_to_hf = engine["left_to_hf"]
    assert (engine["name"], engine["documents"]) == ("native", 397)
    assert left_to_hf["documents"] == 60 and left_to_hf["reasons"] == {REASON: 60}
    assert left_to_hf["bytes"] >= 60 * len(f" {INEXACT}x".encode())
    assert f"397 documents encoded by native {engine['version']}; parts of 60 (15.11%) by Hugging" in summary
    assert "WARNING: this run was slow" in summary
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"native {engine['version']}" in page and "60 (15.11%)" in page and f"{REASON} (60)" in page
    assert defects(out) == []
    assert json.loads((out / "train" / MANIFEST).read_text())["config"]["unit_bytes"] == 4000
    assert len((out / "train" / "units.jsonl").read_text().splitlines()) > 10
    for name, options in {"two": TWO_WORKERS, "portable": EMBEDDED}.items():
        assert content(run(name, "--dedup", "exact", *options)) == content(out)


def test_a_resumed_run_counts_what_the_earlier_one_has_encoded(run, monkeypatch):
    expected = engines(run("whole"))
    tokenize, done = TokenizeUnit._tokenize, []

    def failing(step: TokenizeUnit, unit, *args):
        if unit.index == 3:
            raise RuntimeError("stopped")
        done.append(unit.index)
        return tokenize(step, unit, *args)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(TokenizeUnit, "_tokenize", failing)
        run("out")
    assert done
    out = run("out", "--resume")
    assert engines(out) == expected
    assert defects(out) == []


def test_a_resumed_run_with_another_engine_names_both(run, monkeypatch):
    tokenize = TokenizeUnit._tokenize

    def failing(step: TokenizeUnit, unit, *args):
        if unit.index == 3:
            raise RuntimeError("stopped")
        return tokenize(step, unit, *args)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(TokenizeUnit, "_tokenize", failing)
        run("out")
    out = run("out", "--resume", "--engine", "hf")
    hf, native = engines(out)
    assert (hf["name"], native["name"]) == ("hf", "native")
    assert hf["documents"] + native["documents"] == 417
    assert hf["left_to_hf"] == {"documents": 0, "bytes": 0, "reasons": {}}
    assert defects(out) == []


def test_a_tokenizer_without_a_fast_engine_is_left_to_hf_with_the_reason(
    run, tokenizer_folder, tmp_path, capsys
):
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path / "slow"))
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Whitespace"}, parts["pre_tokenizer"]],
    }
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    (engine,) = engines(run("out", tokenizer=folder))
    reason = "the pre-tokenizer Whitespace + Metaspace"
    assert engine["name"] == "hf" and engine["left_to_hf"]["reasons"] == {reason: 417}
    summary = capsys.readouterr().out
    assert f"417 documents encoded by Hugging Face's tokenizers {engine['version']}, since no" in summary
    assert reason in summary


DAMAGE = {
    "a document too few": (lambda e: e[0].update(documents=396), "engines: encoded 396 documents, but 417"),
    "more left than encoded": (
        lambda e: e[0]["left_to_hf"].update(documents=418, bytes=999),
        "is impossible",
    ),
    "left without a reason": (lambda e: e[0]["left_to_hf"].update(reasons={}), "is impossible"),
    "a reason without documents": (lambda e: e[0]["left_to_hf"]["reasons"].update(x=0), "are not counts"),
    "no text": (lambda e: e[0]["left_to_hf"].update(bytes=1), "is impossible"),
    "an engine twice": (lambda e: e.append({**e[0], "documents": 0}), "are not sorted, or not different"),
    "a negative count": (lambda e: e[0].update(documents=-1), r"engines[0].documents is -1"),
    "no name": (lambda e: e[0].pop("name"), "engines[0].name is missing"),
}


@pytest.fixture(scope="module")
def finished_dataset(source: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "out"
    prepare.main(arguments(source, tokenizer_folder, folder, *OPTIONS))
    return folder


def edit(dataset: Path, change) -> None:
    for path in dataset.glob(f"*/{MANIFEST}"):
        manifest = json.loads(path.read_text())
        del manifest["checksum"]
        change(manifest)
        path.write_bytes(with_checksum(manifest))


@pytest.mark.parametrize("name", DAMAGE)
def test_verify_rejects_counts_that_contradict_each_other(name: str, finished_dataset: Path, tmp_path: Path):
    change, message = DAMAGE[name]
    dataset = Path(shutil.copytree(finished_dataset, tmp_path / "dataset"))
    edit(dataset, lambda manifest: change(manifest["engines"]))
    dataset_defects = defects(dataset)
    assert any(message in defect for defect in dataset_defects), dataset_defects


def test_verify_rejects_engines_that_differ_between_splits(finished_dataset: Path, tmp_path: Path):
    dataset = Path(shutil.copytree(finished_dataset, tmp_path / "dataset"))
    edit(dataset, lambda m: m["engines"][0].update(version=m["split"]))
    assert any("its engines differ from" in defect for defect in defects(dataset))
