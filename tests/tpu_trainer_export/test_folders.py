"""Folders of models, from the trainer to transformers' PyTorch classes and back, for every model type."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
tf = pytest.importorskip("tensorflow")

from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from tests.tpu_trainer.model_types import ALL, small_config  # noqa: E402
from tests.tpu_trainer.tiny import MAX_LENGTH, SPECIAL_TOKENS, WORDS  # noqa: E402
from tests.tpu_trainer.trained import configuration_of, export_of  # noqa: E402
from tpu_trainer.data.tokenizer import load_tokenizer  # noqa: E402
from tpu_trainer.data.vocabulary import Vocabulary  # noqa: E402
from tpu_trainer.exports.config_file import config_text  # noqa: E402
from tpu_trainer.exports.exported import open_model, open_tokenizer  # noqa: E402
from tpu_trainer.exports.sampling import Sampling  # noqa: E402
from tpu_trainer.exports.saved_tokenizer import save_tokenizer  # noqa: E402
from tpu_trainer.network.families.registry import FAMILIES  # noqa: E402
from tpu_trainer.network.transformer import Inputs  # noqa: E402
from tpu_trainer.verbs.fill_mask import MaskFiller  # noqa: E402
from tpu_trainer.verbs.generate import Generator  # noqa: E402

ROOT = Path(__file__).parents[2]
CLASSES = {"mlm": transformers.AutoModelForMaskedLM, "clm": transformers.AutoModelForCausalLM}
VOCABULARY = Vocabulary(size=50, special_ids=(0, 1, 2, 3, 4), pad_id=1, mask_id=4, bos_id=0, eos_id=2)
GREEDY = Sampling(temperature=0.0, top_k=None, top_p=None, seed=0)
every_type = pytest.mark.parametrize(("objective", "model_type"), ALL, ids=lambda value: value)


def write_tokenizer(folder: Path, objective: str, **further: Any) -> None:
    """Writes a tokenizer of five special tokens and words as an export does; rows of masked models are <s> … </s>."""
    ids = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *(f"w{i}" for i in range(WORDS))])}
    core = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if objective == "mlm" else "$A </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    roles = dict(zip(("bos", "pad", "eos", "unk", "mask"), SPECIAL_TOKENS, strict=True))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, **{f"{role}_token": token for role, token in roles.items()}, **further
    ).save_pretrained(folder)
    appends = objective == "mlm"
    save_tokenizer(str(folder), folder, max_length=MAX_LENGTH, token_types=False, appends=appends)


def loaded(folder: Path) -> Any:
    """Returns PyTorch's model of an export."""
    objective = FAMILIES[json.loads((folder / "config.json").read_text())["model_type"]].objective
    model, report = CLASSES[objective].from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def torch_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor(ids).long()).logits.numpy()


@every_type
def test_an_export_loads_in_pytorch_and_answers_as_the_verbs_do(
    objective: str, model_type: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, objective)
    model = export_of(model_type, VOCABULARY, tmp_path)
    reference = loaded(tmp_path)
    ids = np.random.default_rng(0).integers(5, 50, (2, MAX_LENGTH)).astype(np.int32)
    expected = torch_logits(reference, ids)
    actual = model.logits_at(Inputs(tf.constant(ids))).numpy()[..., :50]
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.ptp(expected))
    assert expected.std() > 0.01
    tokenizer, vocabulary = open_tokenizer(str(tmp_path), objective)
    opened = open_model(str(tmp_path), tokenizer, vocabulary, objective)
    if objective == "mlm":
        pipe = transformers.pipeline(
            "fill-mask", model=reference, tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path)
        )
        (predictions,) = MaskFiller(opened, tokenizer).fill("w1 <mask> w3", 5)
        answers = pipe("w1 <mask> w3", top_k=5)
        assert [prediction.token for prediction in predictions] == [answer["token_str"] for answer in answers]
        scores = [answer["score"] for answer in answers]
        np.testing.assert_allclose([prediction.probability for prediction in predictions], scores, rtol=1e-4)
        return
    prompts = [[6, 7, 8], [45], [12, 12, 35, 9]]
    continuations = Generator(opened, tokenizer, GREEDY)._new_tokens(prompts, [0, 1, 2], [10, 10, 10])
    for prompt, new in zip(prompts, continuations, strict=True):
        row = torch.tensor([prompt])
        answer = reference.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=10, do_sample=False
        )
        assert [token for token in answer[0, len(prompt) :].tolist() if token != 2] == new


@every_type
def test_a_folder_of_pytorch_starts_the_same_model(objective: str, model_type: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = {"vocab_size": 50, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    kind = transformers.CONFIG_MAPPING[model_type]
    positions = kind.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    reference = (
        CLASSES[objective].from_config(kind(**small_config(model_type), **ids, **{positions: 40})).eval()
    )
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    write_tokenizer(tmp_path, objective)
    model = open_model(str(tmp_path), *open_tokenizer(str(tmp_path), objective), objective)
    rows = np.random.default_rng(0).integers(5, 50, (2, MAX_LENGTH)).astype(np.int32)
    expected = torch_logits(reference, rows)
    actual = model.logits_at(Inputs(tf.constant(rows))).numpy()[..., :50]
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.ptp(expected))


def test_exported_tokenizers_give_equal_ids_in_transformers_4_and_5(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "clm", extra_special_tokens=["<x>"])
    texts = ["w0 w1<x> w2", "", "<mask>w5 </s>"]
    ids = load_tokenizer(str(tmp_path))(texts)["input_ids"]
    assert ids[0] == [5, 6, 50, 7]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"] == ids
    code = (
        "import json, sys; from transformers import AutoTokenizer; "
        "print(json.dumps(AutoTokenizer.from_pretrained(sys.argv[1])(json.loads(sys.argv[2]))['input_ids']))"
    )
    assert in_version_4(code, str(tmp_path), json.dumps(texts)) == ids


def test_a_config_file_leaves_nothing_to_the_defaults_of_transformers_4() -> None:
    code = (
        "import json, sys; from transformers import CONFIG_MAPPING as kinds, PretrainedConfig; "
        "general = set(PretrainedConfig().to_dict()); "
        "print(json.dumps({kind: [*set(kinds[kind]().to_dict()) - general] for kind in sys.argv[1:]}))"
    )
    # Other names of values, and what has no effect or only one value in 5.
    known = {"gpt_neox": {"rope_theta", "partial_rotary_factor"}, "modernbert": {"repad_logits_with_grad"}}
    for model_type, names in in_version_4(code, *FAMILIES).items():
        written = json.loads(config_text(configuration_of(model_type, VOCABULARY), vocabulary=50))
        missing = set(names) - written.keys() - {"position_embedding_type"}
        assert missing <= known.get(model_type, set()), model_type


def in_version_4(code: str, *arguments: str) -> Any:
    """Returns what Python code prints as JSON in the environment of transformers 4.57."""
    python = os.environ.get("PIPELINE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    command = [python, "-c", code, *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])
