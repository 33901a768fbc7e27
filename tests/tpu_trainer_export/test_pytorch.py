"""Exports of every model type, loaded by transformers in PyTorch: no key too few or too many, and the same logits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

from tests.tpu_trainer.model_types import ALL  # noqa: E402
from tests.tpu_trainer_export.initial_weights import TABLE, measure  # noqa: E402

ROOT = Path(__file__).parents[2]
_CLASSES = {"mlm": transformers.AutoModelForMaskedLM, "clm": transformers.AutoModelForCausalLM}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that write_exports.py fills, run by the trainer's environment."""
    folder = tmp_path_factory.mktemp("exports")
    python = os.environ.get("TRAINER_PYTHON", str(ROOT / "trainer" / ".venv" / "bin" / "python"))
    search = os.pathsep.join([str(ROOT / "trainer"), str(ROOT)])
    subprocess.run(
        [python, Path(__file__).with_name("write_exports.py"), folder],
        check=True,
        env=os.environ | {"PYTHONPATH": search},
    )
    return folder


def test_every_model_type_loads_and_gives_the_same_logits(exports: Path, subtests: pytest.Subtests) -> None:
    names = sorted(path.name for path in exports.iterdir())
    assert {"mlm-roberta", "mlm-bert", "clm-gpt2"} <= set(names)
    for name in names:
        with subtests.test(name):
            folder = exports / name
            model, report = _CLASSES[name.split("-")[0]].from_pretrained(folder, output_loading_info=True)
            assert not any(report.values()), report
            reference = np.load(folder / "reference.npz")
            ids, mask = (torch.tensor(reference[key]).long() for key in ("input_ids", "attention_mask"))
            with torch.no_grad():
                logits = model.eval()(input_ids=ids, attention_mask=mask).logits.numpy()
            real = reference["attention_mask"] > 0
            np.testing.assert_allclose(logits[real], reference["logits"][real], rtol=1e-4, atol=1e-5)
            # The reference tells models apart: it is not all but constant.
            assert reference["logits"][real].std() > 0.01


def test_the_tokenizer_loads(exports: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exports / "mlm-roberta")
    assert len(tokenizer) == 50
    assert tokenizer("w0 <mask> w2")["input_ids"] == [0, 5, 4, 7, 2]
    assert tokenizer.model_max_length == 16


def test_pipelines_answer_as_the_verbs_do(exports: Path) -> None:
    fill = transformers.pipeline("fill-mask", model=str(exports / "mlm-roberta"))
    for text, expected in json.loads((exports / "mlm-roberta" / "answers.json").read_text()).items():
        answers = fill(text, top_k=5)
        assert [answer["token_str"] for answer in answers] == [token for token, _ in expected]
        np.testing.assert_allclose(
            [answer["score"] for answer in answers], [probability for _, probability in expected], rtol=1e-4
        )
    generate = transformers.pipeline("text-generation", model=str(exports / "clm-gpt2"))
    for text, expected in json.loads((exports / "clm-gpt2" / "answers.json").read_text()).items():
        (answer,) = generate(text, max_new_tokens=8, do_sample=False)
        # It spells the new tokens by themselves: this tokenizer has no decoder to put the space between.
        assert answer["generated_text"].replace(" ", "") == expected.replace(" ", "")


def test_the_table_of_initial_weights_is_pytorchs(subtests: pytest.Subtests) -> None:
    table = json.loads(TABLE.read_text())
    for objective, model_type in ALL:
        with subtests.test(f"{objective}-{model_type}"):
            expected, found = table[f"{objective} {model_type}"], measure(objective, model_type)
            assert found.keys() == expected.keys()
            for name, moments in found.items():
                assert moments == pytest.approx(expected[name], rel=0.1, abs=0.003), name
