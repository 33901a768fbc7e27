"""The verbs fit, evaluate, export and fill-mask on the command line."""

from __future__ import annotations

import importlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights
from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_split
from tpu_trainer.data.dataset import open_split
from tpu_trainer.devices.tensorflow import devices
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor
from tpu_trainer.exports.exported import open_model, open_tokenizer
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder

OPTIONS: dict[str, Any] = {
    "model.type": "roberta",
    "model.config.hidden_size": 32,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 4,
    "model.config.intermediate_size": 48,
    "model.config.type_vocab_size": 1,
    "model.config.hidden_dropout_prob": 0.01,
    "model.config.attention_probs_dropout_prob": 0.0,
    "optimizer.learning_rate": 0.02,
    "schedule.warmup_steps": 10,
    "train.steps": 360,
    "train.batch_size": 32,
    "train.log_every": 100,
    "train.evaluate_every": 250,
    "train.checkpoint_every": 170,
    "train.keep_checkpoints": 2,
}


def arguments(dataset: Path, run: Path | str, **changes: Any) -> list[Any]:
    return fit_arguments(
        dataset, run, OPTIONS | {name.replace("__", "."): value for name, value in changes.items()}
    )


@pytest.fixture(scope="module")
def run_folder(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the command line, in a separate process."""
    run = tmp_path_factory.mktemp("run") / "run"
    command = [sys.executable, "-m", "tpu_trainer", *map(str, arguments(dataset, run))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (run.parent / "stderr.txt").write_text(result.stderr)
    return run


@pytest.fixture(scope="module")
def exported(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tpu_trainer.config import ExportConfig
    from tpu_trainer.verbs import export

    folder = tmp_path_factory.mktemp("export") / "model"
    export.main(ExportConfig(run=str(run_folder), output=str(folder)))
    return folder


def text_of(first: int, masked: tuple[int, ...] = ()) -> str:
    """A row of the language as text, counting up from `first`."""
    return " ".join(
        "<mask>" if word in masked else f"w{word}" for word in range(first, first + MAX_LENGTH - 2)
    )


def test_fit_learns_and_reports_it(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["unigram_entropy"] == pytest.approx(np.log(45), abs=0.01)
    assert summary["initial_loss"] == pytest.approx(np.log(50), abs=0.3)
    assert summary["final_loss"] < summary["eval"]["loss"] + 1 < summary["unigram_entropy"]
    assert summary["steps"] == 360
    assert summary["tokens_per_second"] > 0
    lines = metrics(run_folder)
    assert [line["step"] for line in lines if "loss" in line] == [1, 100, 200, 300, 360]
    assert [line["step"] for line in lines if "eval" in line] == [250, 360]
    assert lines[0]["loss"] == summary["initial_loss"]
    assert Checkpoints(str(run_folder / "checkpoints")).steps() == [340, 360]


def test_fit_prints_no_messages_of_libraries(run_folder: Path) -> None:
    text = (run_folder.parent / "stderr.txt").read_text()
    assert "tokens/s" in text
    assert [line for line in text.splitlines() if not line.startswith(("fit: ", "step "))] == []


def test_a_finished_run_stays_unchanged(
    run_verb: Callable[..., int], dataset: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    assert run_verb(*arguments(dataset, run_folder)) == 0
    assert "already finished, with 360 steps" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")} == before


def test_other_options_do_not_continue_a_run(
    run_verb: Callable[..., int],
    dataset: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb(*arguments(dataset, run_folder, optimizer__learning_rate=0.03)) == 2
    assert "--optimizer.learning_rate was 0.02 and is 0.03" in capsys.readouterr().err
    other_split = write_split(tmp_path / "train", sequences(60, 9), tokenizer=dataset / "tokenizer")
    assert run_verb(*arguments(dataset, run_folder, data__train=other_split)) == 2
    assert "not the data that the" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    assert run_verb(*arguments(dataset, tmp_path / "mine")) == 2
    assert "it contains 'letter.txt' but no run" in capsys.readouterr().err


def test_inconsistent_data_is_rejected(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter_rows = write_split(
        tmp_path / "validation", sequences(60, 9)[:, :8], tokenizer=dataset / "tokenizer"
    )
    assert run_verb(*arguments(dataset, tmp_path / "run", data__validation=shorter_rows)) == 2
    assert "validation: rows of 8 tokens, but" in capsys.readouterr().err
    assert run_verb(*arguments(dataset, tmp_path / "run", strategy="tpu")) == 2
    assert "--strategy is 'tpu', but this machine has no TPU" in capsys.readouterr().err
    assert run_verb(*arguments(dataset, tmp_path / "run", strategy="gpu")) == 2
    assert "--strategy is 'gpu', but TensorFlow sees no GPU" in capsys.readouterr().err
    without_manifest = write_split(tmp_path / "bare" / "train", sequences(60, 9), tokenizer=None)
    shutil.copytree(dataset / "tokenizer", tmp_path / "bare" / "tokenizer")
    changes = {"data__train": without_manifest, "model__init_output_bias": "true"}
    assert run_verb(*arguments(dataset, tmp_path / "run", **changes)) == 2
    assert "--model.init_output_bias needs the token counts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_finished_run_continues_with_more_steps(
    run_verb: Callable[..., int],
    dataset: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    assert run_verb(*arguments(dataset, run, train__steps=365)) == 0
    assert "continues after step 360" in capsys.readouterr().err
    assert json.loads((run / "summary.json").read_text())["steps"] == 365
    (run / "summary.json").unlink()
    assert run_verb(*arguments(dataset, run, train__steps=60)) == 2
    assert (
        "--train.steps is 60, but the run's newest checkpoint already has 365 steps"
        in capsys.readouterr().err
    )


def assert_same_figures(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares evaluations with other batch sizes: sums have another order, and equally likely tokens another rank."""
    assert [actual[name] for name in ("targets", "rows")] == [expected[name] for name in ("targets", "rows")]
    for name in ("loss", "perplexity"):
        assert actual[name] == pytest.approx(expected[name], rel=1e-6)
    assert actual["accuracy"] == pytest.approx(expected["accuracy"], abs=1.5 / expected["targets"])


def test_evaluate_repeats_the_final_figures(
    run_verb: Callable[..., int],
    dataset: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "figures.json"
    assert (
        run_verb("evaluate", "--run", run_folder, "--batch_size", 10, "--output", output, "--strategy", "cpu")
        == 0
    )
    figures = json.loads(output.read_text())
    assert json.loads(capsys.readouterr().out) == figures
    expected = json.loads((run_folder / "summary.json").read_text())["eval"]
    assert figures["step"] == 360
    assert_same_figures(figures, expected)
    output = tmp_path / "missing" / "figures.json"
    assert run_verb("evaluate", "--run", run_folder, "--output", output, "--strategy", "cpu") == 74
    out, err = capsys.readouterr()
    assert_same_figures(json.loads(out), figures)
    assert f"{output}: cannot be written" in err
    shorter_rows = write_split(
        tmp_path / "validation", sequences(60, 9)[:, :8], tokenizer=dataset / "tokenizer"
    )
    assert run_verb("evaluate", "--run", run_folder, "--data", shorter_rows) == 2
    assert "rows of 8 tokens; the run was trained on rows of 16" in capsys.readouterr().err


def test_evaluate_scores_the_checkpoint_that_is_named(
    run_verb: Callable[..., int], run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, output, scores = (tmp_path / name for name in ("pairs.jsonl", "figures.json", "scores.json"))
    sentences = [" ".join(f"w{(7 * number + place) % 45}" for place in range(6)) for number in range(40)]
    pairs.write_text(
        "".join(
            json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n"
            for good, bad in zip(sentences[::2], sentences[1::2], strict=True)
        )
    )
    on_cpu = ("--strategy", "cpu", "--output", output)
    losses = {}
    for checkpoint, step in (("340", 340), ("best", 360), ("latest", 360)):
        assert run_verb("evaluate", "--run", run_folder, "--checkpoint", checkpoint, *on_cpu) == 0
        figures = json.loads(output.read_text())
        assert figures["step"] == step
        losses[checkpoint] = figures["loss"]
    assert losses["best"] == losses["latest"] < losses["340"]
    run = shutil.copytree(run_folder, tmp_path / "run")
    tasks = ("--tasks", pairs, "--strategy", "cpu")
    for checkpoint in ("340", "latest"):
        assert run_verb("evaluate", "--run", run, "--checkpoint", checkpoint, *tasks) == 0
    recorded = RunFolder(str(run)).evaluations()
    assert [each["step"] for each in recorded] == [340, 360]
    # The export of that step is scored by other code.
    assert run_verb("export", "--run", run, "--checkpoint", "340", "--output", tmp_path / "model") == 0
    assert run_verb("evaluate", "--model", tmp_path / "model", *tasks, "--output", scores) == 0
    assert json.loads(scores.read_text())["tasks"] == recorded[0]["tasks"]
    capsys.readouterr()
    assert run_verb("evaluate", "--run", run, "--checkpoint", "11", *tasks) == 2
    assert "--checkpoint is 11, but the run has checkpoints of the steps 340, 360" in capsys.readouterr().err


def test_export_has_pytorchs_names_shapes_and_layouts(exported: Path, run_folder: Path) -> None:
    with safe_open(exported / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    block = "roberta.encoder.layer.0"
    matrices = {
        f"{block}.attention.self.query": (32, 32),
        f"{block}.attention.self.key": (32, 32),
        f"{block}.attention.self.value": (32, 32),
        f"{block}.attention.output.dense": (32, 32),
        f"{block}.intermediate.dense": (48, 32),  # PyTorch's Linear: [out, in]
        f"{block}.output.dense": (32, 48),
        "lm_head.dense": (32, 32),
    }
    norms = [
        "roberta.embeddings.LayerNorm",
        f"{block}.attention.output.LayerNorm",
        f"{block}.output.LayerNorm",
        "lm_head.layer_norm",
    ]
    expected = {
        "roberta.embeddings.word_embeddings.weight": (50, 32),
        "roberta.embeddings.position_embeddings.weight": (MAX_LENGTH + 2, 32),
        "roberta.embeddings.token_type_embeddings.weight": (1, 32),
        "lm_head.bias": (50,),
    }
    expected |= {f"{name}.weight": shape for name, shape in matrices.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
    expected |= {f"{name}.{part}": (32,) for name in norms for part in ("weight", "bias")}
    assert {name: array.shape for name, array in arrays.items()} == expected
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    trained = weights(run_folder)["network/layers.0.mlp.up.weight"]
    np.testing.assert_array_equal(arrays[f"{block}.intermediate.dense.weight"], trained)
    config = json.loads((exported / "config.json").read_text())
    assert (config["architectures"], config["vocab_size"], config["pad_token_id"]) == (
        ["RobertaForMaskedLM"],
        50,
        1,
    )


def test_an_export_predicts_like_the_run(exported: Path) -> None:
    tokenizer, vocabulary = open_tokenizer(str(exported), "mlm")
    model = open_model(str(exported), tokenizer, vocabulary, "mlm")
    assert (len(AutoTokenizer.from_pretrained(exported)), tokenizer.model_max_length) == (50, MAX_LENGTH)
    ids = np.array([tokenizer(text_of(7, masked=(9,)))["input_ids"]], np.int32)
    logits = model.logits_at(Inputs(ids)).numpy()[0, 3]
    assert tokenizer.convert_ids_to_tokens(int(logits.argmax())) == "w9"


def test_export_rejects_a_folder_with_other_files(
    run_verb: Callable[..., int],
    run_folder: Path,
    dataset: Path,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("export", "--run", run_folder, "--output", dataset) == 2
    assert "it contains 'tokenizer' but no exported model" in capsys.readouterr().err
    earlier = shutil.copytree(exported, tmp_path / "earlier")
    whole = earlier / "model.safetensors"
    whole.rename(earlier / "model-00001-of-00002.safetensors")
    assert run_verb("export", "--run", run_folder, "--output", earlier) == 0  # an older export is replaced
    assert [path.name for path in earlier.glob("model*")] == [whole.name]


def test_fit_starts_from_an_export(
    run_verb: Callable[..., int], dataset: Path, exported: Path, run_folder: Path, tmp_path: Path
) -> None:
    start = shutil.copytree(exported, tmp_path / "start")
    run = tmp_path / "run"
    changes = {"model.init_from": start, "train.steps": 2, "train.log_every": 1, "schedule.warmup_steps": 1}
    other_options = {name: value for name, value in OPTIONS.items() if not name.startswith("model.")}
    assert (
        run_verb(*fit_arguments(dataset, run, other_options | {"optimizer.learning_rate": 1e-6} | changes))
        == 0
    )
    summary, before = (json.loads((folder / "summary.json").read_text()) for folder in (run, run_folder))
    assert summary["parameters"] == before["parameters"]
    assert summary["eval"]["loss"] == pytest.approx(before["eval"]["loss"], rel=1e-3)
    # The run has the whole configuration, so the initial model can be removed.
    shutil.rmtree(start)
    assert run_verb("evaluate", "--run", run, "--strategy", "cpu") == 0
    assert run_verb("export", "--run", run, "--output", tmp_path / "export") == 0


def test_models_that_training_cannot_start_from(
    run_verb: Callable[..., int],
    dataset: Path,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refusal(**options: Any) -> str:
        options = {name.replace("__", "."): value for name, value in options.items()}
        assert run_verb(*fit_arguments(dataset, tmp_path / "run", options)) == 2
        return capsys.readouterr().err

    assert "no config.json there" in refusal(model__init_from=tmp_path)
    assert "has a model of type 'roberta'" in refusal(model__init_from=exported, model__type="bert")
    options = {"model.init_from": exported, "model.config.num_hidden_layers": 2}
    assert "no weights for roberta.encoder.layer.1." in refusal(**options)
    start = tmp_path / "start"
    shutil.copytree(exported, start)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    assert "vocabulary has 60 tokens, but the dataset's tokenizer 50" in refusal(model__init_from=start)
    (start / "config.json").write_text(json.dumps(config))
    (start / "model.safetensors").unlink()
    assert "no model.safetensors there" in refusal(model__init_from=start)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_compiles_each_kind_of_step_once(
    run_verb: Callable[..., int], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors: list[TensorFlowExecutor] = []

    def record_executor(*positional: Any, **keywords: Any) -> TensorFlowExecutor:
        executors.append(TensorFlowExecutor(*positional, **keywords))
        return executors[-1]

    monkeypatch.setattr(devices, "TensorFlowExecutor", record_executor)
    options = {"train.steps": 9, "train.evaluate_every": 3, "train.checkpoint_every": 4, "train.log_every": 2,
               "train.accumulation": 2, "optimizer.ema": 0.9, "model.config.num_hidden_layers": 1,
               "model.config.hidden_size": 24, "train.batch_size": 8}  # fmt: skip
    for calls in (1, 3):
        run = tmp_path / f"run{calls}"
        assert run_verb(*fit_arguments(dataset, run, options | {"train.steps_per_execution": calls})) == 0
        assert executors[-1].train_function.experimental_get_tracing_count() == 1
        assert executors[-1].evaluation_function.experimental_get_tracing_count() == 1
    logs = [learnt(metrics(tmp_path / f"run{calls}")) for calls in (1, 3)]
    # Three steps in a call: the log and evaluations that are due come after the last.
    assert [line["step"] for line in logs[0] if "loss" in line] == [1, 2, 4, 6, 8, 9]
    assert [line["step"] for line in logs[1] if "loss" in line] == [3, 6, 9]
    assert [line for line in logs[0] if "eval" in line] == [line for line in logs[1] if "eval" in line]
    assert weights(tmp_path / "run1").keys() == weights(tmp_path / "run3").keys()
    for name, value in weights(tmp_path / "run1").items():
        if not name.startswith("running"):
            np.testing.assert_array_equal(value, weights(tmp_path / "run3")[name], err_msg=name)


def test_fill_mask(
    run_verb: Callable[..., int],
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = text_of(1, masked=(3, 6))
    assert run_verb("fill-mask", "--model", exported, "--text", text, "--top_k", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * (1 + 2)
    assert lines[0] == text
    first = lines[2].split(maxsplit=2)
    assert (first[1], first[2]) == ("'w3'", text_of(1, masked=(6,)))
    assert 0.2 < float(first[0]) <= 1  # of 45 words
    assert "'w6'" in {line.split()[1] for line in lines[5:]}
    lines = text_of(20, masked=(21,)) + "\n" + text_of(30, masked=(31,)) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert run_verb("fill-mask", "--model", exported, "--top_k", 1) == 0
    stdout = capsys.readouterr().out
    assert text_of(20) in stdout
    assert text_of(30) in stdout
    for stdin, options, message in (
        (b"w1 <mask>\n\xff\n", (), "line 2 of the standard input: is not UTF-8"),
        (b"", ("--text", "\udcff <mask>"), "--text: character 1 is '\\udcff', so the text is not UTF-8"),
        (
            b'{"text": "w1 \\ud800 <mask>"}',
            ("--json",),
            "line 1 of the standard input: character 4 is '\\ud800'",
        ),
        (b"[" * 100_000, ("--json",), "line 1 of the standard input is not JSON"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert run_verb("fill-mask", "--model", exported, "--top_k", 1, *options) == 2
        assert message in capsys.readouterr().err
    for wrong_text, message in (
        ("w1 w2", "no <mask> in the text 'w1 w2'"),
        ("<mask> " * 20, "a text has 22 tokens; the model takes 16"),
    ):
        assert run_verb("fill-mask", "--model", exported, "--text", wrong_text) == 2
        assert message in capsys.readouterr().err


def test_verbs_show_what_takes_seconds(
    run_verb: Callable[..., int],
    run_folder: Path,
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activities: list[str] = []

    @contextmanager
    def record_activity(activity: str) -> Iterator[None]:
        activities.append(activity)
        yield

    for module in ("verbs.export", "verbs.evaluate", "scoring.models", "verbs.fill_mask"):
        monkeypatch.setattr(importlib.import_module(f"tpu_trainer.{module}"), "elapsed", record_activity)
    run_verb("export", "--run", run_folder, "--output", tmp_path / "model")
    run_verb("evaluate", "--run", run_folder, "--output", tmp_path / "figures.json", "--strategy", "cpu")
    run_verb("fill-mask", "--model", exported, "--text", "w1 <mask>")
    assert activities == [
        "export: starting TensorFlow",
        "export: writing the model",
        "evaluate: starting TensorFlow",
        "evaluate: building the model",
        "fill-mask: loading the tokenizer",
        "fill-mask: starting TensorFlow",
    ]


def test_fit_on_several_datasets(
    run_verb: Callable[..., int],
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = sequences(90, 8)
    other_split = write_split(
        tmp_path / "other" / "train", rows, tokenizer=dataset / "tokenizer", attention_mask=np.ones_like(rows)
    )
    run = tmp_path / "run"
    changes = {
        "data__train": json.dumps({str(dataset / "train"): 3, str(other_split): 1}),
        "train__steps": 4,
        "train__checkpoint_every": 2,
        "schedule__warmup_steps": 1,
    }
    assert run_verb(*arguments(dataset, run, **changes)) == 0
    assert "390 rows of 16 tokens" in capsys.readouterr().err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["unigram_entropy"] == pytest.approx(np.log(45), abs=0.01)
    # Different weights are different data.
    changes["data__train"] = json.dumps({str(dataset / "train"): 2, str(other_split): 1})
    assert run_verb(*arguments(dataset, run, **changes)) == 2
    assert "not the data that the" in capsys.readouterr().err
    # Damage that does not change the size of the shard.
    shard = other_split / "train-00001-40.tfrecord"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    changes["data__window_shards"] = 3
    assert run_verb(*arguments(dataset, tmp_path / "harmed", **changes)) == 2
    assert re.search(
        r"other/train/train-00001-40.tfrecord: record \d+.* the checksum of", capsys.readouterr().err
    )


def test_urls_of_data_runs_and_models(
    run_verb: Callable[..., int], dataset: Path, run_folder: Path, tmp_path: Path
) -> None:
    # file:// goes through tf.io.gfile as gs:// does.
    assert run_verb("export", "--run", f"file://{run_folder}", "--output", f"file://{tmp_path}/model") == 0
    assert run_verb("fill-mask", "--model", f"file://{tmp_path}/model", "--text", "w1 <mask>") == 0
    assert len(open_split(f"file://{dataset}/train")) == 300
