"""`evaluate --tasks`: scores of runs and exports, compared with those of lm-eval's own model in PyTorch."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")
tf = pytest.importorskip("tensorflow")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.evaluator import simple_evaluate  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from tests.tpu_trainer.tiny import MAX_LENGTH  # noqa: E402
from tests.tpu_trainer.trained import export_of, run_of  # noqa: E402
from tests.tpu_trainer_export.test_folders import VOCABULARY, loaded, write_tokenizer  # noqa: E402
from tpu_trainer.config import EvaluateConfig  # noqa: E402
from tpu_trainer.data.target_rows import masked_rows  # noqa: E402
from tpu_trainer.data.words import Words  # noqa: E402
from tpu_trainer.devices.pjrt.peers import Peers  # noqa: E402
from tpu_trainer.exports.checkpoint_export import export_checkpoint  # noqa: E402
from tpu_trainer.runs.run_folder import RunFolder  # noqa: E402
from tpu_trainer.scoring.harness_model import HarnessModel  # noqa: E402
from tpu_trainer.scoring.models import open_model  # noqa: E402
from tpu_trainer.scoring.scorer import Scorer  # noqa: E402
from tpu_trainer.support.errors import UsageError  # noqa: E402
from tpu_trainer.verbs import evaluate  # noqa: E402

CHOOSER = random.Random(0)
CHOICES = """task: choices_test
dataset_path: json
dataset_kwargs: {data_files: {test: data/choices.jsonl}}
test_split: test
fewshot_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: answer
doc_to_choice: choices
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
PAIRS = """task: pairs_test
dataset_path: json
dataset_kwargs: {data_files: {test: data/pairs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
num_fewshot: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLING = """task: rolling_test
dataset_path: json
dataset_kwargs: {data_files: {test: data/pairs.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{sentence_good}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""
GROUP = "group: both_test\ntask: [choices_test, rolling_test]\n"
REMOTE = "task: remote_test\ndataset_path: someone/data\ndataset_name: easy\ntest_split: test\n"
NAMES = "both_test,pairs_test"


def words(count: int) -> str:
    return " ".join(f"w{CHOOSER.randrange(45)}" for _ in range(count))


def lm_evals_model(export: Path) -> HFLM:
    # Its cache of logits, as of 0.4.13, gives wrong likelihoods if a text is asked for twice with other contexts.
    return HFLM(pretrained=str(export), device="cpu", batch_size=4, logits_cache=False)


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tasks and their data."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "tasks"
    (folder / "data").mkdir(parents=True)
    for name, text in (("choices", CHOICES), ("pairs", PAIRS), ("rolling", ROLLING), ("group", GROUP)):
        (folder / f"{name}.yaml").write_text(text)
    items = [
        {
            "question": words(CHOOSER.choice((0, 1, 5, 30))),
            "choices": [words(1), words(2)],
            "answer": number % 2,
        }
        for number in range(12)
    ]
    write_lines(folder / "data" / "choices.jsonl", items)
    pairs = [{"sentence_good": words(9), "sentence_bad": words(9)} for _ in range(12)]
    write_lines(folder / "data" / "pairs.jsonl", pairs)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "tokenizer"
    write_tokenizer(folder, "mlm")  # that of the run also puts an end token after texts
    return run_of(tmp_path / "run", folder, VOCABULARY)


@pytest.fixture
def export(run: RunFolder, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    export_checkpoint(run, 30, folder)
    return folder


@pytest.mark.parametrize("strategy", ["cpu", pytest.param("pjrt", marks=pytest.mark.wide)])
def test_likelihoods_are_those_of_lm_evals_model(run: RunFolder, export: Path, strategy: str) -> None:
    """Also after no context, a space at its end, and a context that is too long; and texts longer than a row."""
    pairs = [("", "w1 w2 w3"), ("w4 ", "w5"), ("<s> w1", " w2"), (words(40), " w7 w8"), (words(14), " w6 w9")]
    pairs += [(words(CHOOSER.randrange(1, 9)), f" {words(CHOOSER.randrange(1, 9))}") for _ in range(20)]
    texts = [words(1), words(MAX_LENGTH), words(MAX_LENGTH + 1), words(3 * MAX_LENGTH + 5)]

    def answers(model: Any) -> tuple[list[float], list[bool]]:
        def requests(kind: str, arguments: list[tuple[str, ...]]) -> list[Instance]:
            return [
                Instance(request_type=kind, doc={}, arguments=each, idx=number)
                for number, each in enumerate(arguments)
            ]

        likelihoods, greedy = zip(*model.loglikelihood(requests("loglikelihood", pairs)), strict=True)
        rolling = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in texts]))
        return [*likelihoods, *rolling], list(greedy)

    expected, is_greedy = answers(lm_evals_model(export))
    assert np.ptp(expected[: len(pairs)]) > 1
    for source in ({"run": run.path}, {"model": str(export)}):
        config = EvaluateConfig(tasks="any", strategy=strategy, batch_size=4, **source)
        model = HarnessModel(Scorer(open_model(config, Peers()), Peers()))
        figures, greedy = answers(model)
        np.testing.assert_allclose(figures, expected, atol=1e-4)
        assert greedy == is_greedy


@pytest.mark.parametrize("shots", [None, 1])
def test_scores_are_those_of_lm_evals_model(
    run: RunFolder,
    export: Path,
    tasks: Path,
    shots: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"tasks": NAMES, "task_folder": str(tasks), "shots": shots, "strategy": "cpu"}
    output = tmp_path / "scores.json"
    evaluate.main(EvaluateConfig(run=run.path, **options))
    evaluate.main(EvaluateConfig(model=str(export), output=str(output), **options))
    (record,), exported = run.evaluations(), json.loads(output.read_text())
    assert (record["step"], record["shots"], exported["step"]) == (30, shots, None)
    assert record["harness"].startswith("lm-eval 0.4.")
    monkeypatch.chdir(tasks)
    results = simple_evaluate(
        model=lm_evals_model(export),
        tasks=NAMES.split(","),
        num_fewshot=shots,
        task_manager=TaskManager(include_path="."),
    )["results"]
    assert record["tasks"].keys() == {"choices_test", "rolling_test", "pairs_test"}
    for name, figures in record["tasks"].items():
        figure = next(iter(figures))
        assert figures[figure] == pytest.approx(results[name][f"{figure},none"], abs=1e-6), name
        assert exported["tasks"][name] == pytest.approx(figures, abs=1e-6)
    assert record["tasks"]["choices_test"]["acc_stderr"] > 0


def test_minimal_pairs_have_the_score_of_lm_evals_task(run: RunFolder, tasks: Path) -> None:
    file = tasks / "data" / "pairs.jsonl"
    evaluate.main(EvaluateConfig(run=run.path, tasks=f"{tasks}/pairs.yaml,{file}", task_folder=str(tasks)))
    own, harness = (record["tasks"] for record in run.evaluations())
    assert own["pairs"] == pytest.approx(harness["pairs_test"])


def test_pseudo_likelihoods_are_those_of_pytorch(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    export_of("roberta", VOCABULARY, folder)
    write_tokenizer(folder, "mlm")
    ids, is_special = np.array([0, 9, 20, 33, 7, 2]), np.array([1, 0, 0, 0, 0, 1], bool)
    inside = np.isin(np.arange(50), [33, 7])  # 20 33 7 is a word
    text_words = Words(starts_inside_word=inside, ends_inside_word=np.ones(50, bool))
    config = EvaluateConfig(model=str(folder), tasks="any", strategy="cpu")
    scorer = Scorer(open_model(config, Peers()), Peers())
    torch_model = loaded(folder)
    masks = {None: [[1], [2], [3], [4]], text_words: [[1], [2, 3, 4], [3, 4], [4]]}
    for boundaries, masked_places in masks.items():
        expected = []
        for places in masked_places:
            inputs = torch.tensor(ids[None])
            inputs[0, places] = 4
            with torch.no_grad():
                logits = torch_model(input_ids=inputs).logits[0, places[0], :50]
            expected.append(torch.log_softmax(logits.double(), dim=-1)[ids[places[0]]].item())
        rows = masked_rows(ids, is_special, mask_id=4, words=boundaries)
        np.testing.assert_allclose(scorer.scores(rows).log_likelihood, expected, atol=1e-4)


def test_tasks_that_cannot_be_evaluated_are_refused(run: RunFolder, tasks: Path, tmp_path: Path) -> None:
    generated = CHOICES.replace("multiple_choice", "generate_until").replace("choices_test", "generated_test")
    (tasks / "generated.yaml").write_text(generated.replace("metric: acc", "metric: exact_match"))
    (tasks / "remote.yaml").write_text(REMOTE)
    (tasks / "template.yaml").write_text(
        CHOICES.replace("{{question", "{{quest if answer else question").replace("choices_test", "wrong_test")
    )
    (tasks / "damaged.yaml").write_text(CHOICES.replace("choices", "damaged", 2))
    (tasks / "data" / "damaged.jsonl").write_text('{"question": "w1", "choic')
    (tasks / "long.yaml").write_text(PAIRS.replace("pairs", "long"))
    write_lines(tasks / "data" / "long.jsonl", [{"sentence_good": words(17), "sentence_bad": "w1"}])
    for name, message in {
        "choice_test": "'choice_test' is no task of lm-eval .*; did you mean choices_test",
        "generated_test": "the task generated_test is of type generate_until, which needs generated text",
        "remote_test": (
            r"not on this machine: someone/data \(easy\).* `hf download --repo-type dataset someone/data "
            r"--local-dir TASK_FOLDER/someone/data`, and give --task_folder"
        ),
        "wrong_test": "a template of a task does not fit its data .*'quest' is undefined",
        "damaged_test": r"--tasks damaged_test: cannot be loaded: ",
        "long_test": "a continuation has 17 tokens; the model takes 1 to 16",
        "nowhere.yaml": r"nowhere\.yaml: no such file",
    }.items():
        with pytest.raises(UsageError, match=message):
            evaluate.main(EvaluateConfig(run=run.path, tasks=name, task_folder=str(tasks), strategy="cpu"))
    with pytest.raises(UsageError, match="no such folder"):
        evaluate.main(EvaluateConfig(run=run.path, tasks="piqa", task_folder=str(tasks / "none")))
    export_of("roberta", VOCABULARY, tmp_path)
    with pytest.raises(UsageError, match="lm-eval's tasks need a causal model"):
        evaluate.main(EvaluateConfig(model=str(tmp_path), tasks="choices_test", task_folder=str(tasks)))
    assert run.evaluations() == []


def test_without_data_nothing_is_requested_from_the_hub(export: Path, tasks: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tpu_trainer",
        "evaluate",
        "--model",
        export,
        "--tasks",
        "choices_test,ai2_arc",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [*map(str, command), "--task_folder", str(tasks)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "not on this machine: allenai/ai2_arc (ARC-" in done.stderr
    assert "requesting" not in done.stderr and "Retrying" not in done.stderr


def test_a_copy_of_a_datasets_repository_in_the_task_folder_is_used(run: RunFolder, tasks: Path) -> None:
    """As `hf download` makes it for a task of lm-eval's own."""
    copy = tasks / "baber" / "piqa"
    copy.mkdir(parents=True)
    items = [
        {"goal": words(3), "sol1": words(2), "sol2": words(2), "label": number % 2} for number in range(4)
    ]
    for split in ("train", "validation"):
        write_lines(copy / f"{split}.jsonl", items)
    evaluate.main(EvaluateConfig(run=run.path, tasks="piqa", task_folder=str(tasks), strategy="cpu", limit=3))
    (record,) = run.evaluations()
    assert record["tasks"]["piqa"].keys() == {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"}
    assert record["limit"] == 3
