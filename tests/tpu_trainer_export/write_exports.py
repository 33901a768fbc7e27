"""Writes a small export of every model type, with the logits that TensorFlow computes; run by the trainer's Python.

    python write_exports.py TARGET

TARGET/<objective>-<type>/ is an export, with reference.npz: input_ids, attention_mask, logits. RoBERTa's and GPT-2's
have answers.json, too: by text, what the verbs fill-mask and generate make of it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.export import trim_vocabulary, write_network
from tpu_trainer.exports.exported import open_model, open_tokenizer
from tpu_trainer.exports.model_types import EXPORTABLE
from tpu_trainer.exports.sampling import Sampling
from tpu_trainer.fill_mask import MaskFiller
from tpu_trainer.generate import Generator
from tpu_trainer.network.model import LanguageModel

LENGTH, WORDS = 16, 45
_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2}
_XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "ctrl": _GPT | {"dff": 24},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "electra": _BERT | {"embedding_size": 8},
    "flaubert": _XLM,
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
    "mistral": _BERT | {"num_key_value_heads": 1},
    "opt": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
    | {"word_embed_proj_dim": 16},
    "rembert": _BERT | {"input_embedding_size": 8, "output_embedding_size": 8},
    "roformer": _BERT | {"embedding_size": 8},
    "xlm": _XLM,
}


def make_tokenizer(objective: ObjectiveName) -> PreTrainedTokenizerFast:
    """Words w0 to w44 after five special tokens; rows of masked models are <s> … </s>."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ids = {token: index for index, token in enumerate([*special, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if objective == "mlm":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    names = ("bos", "pad", "eos", "unk", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        **{f"{name}_token": token for name, token in zip(names, special, strict=True)},
    )


def write_export(objective: ObjectiveName, model_type: str, folder: Path) -> None:
    """Writes one export and its reference. All weights differ from 0, or a mistake would not show."""
    tokenizer = make_tokenizer(objective)
    vocabulary = Vocabulary.of(tokenizer, "tokenizer", objective)
    model = LanguageModel.create(
        ModelConfig(type=model_type, config=SIZES.get(model_type, _BERT)),
        objective=objective,
        vocabulary=vocabulary,
        max_length=LENGTH,
        seed=0,
    )
    rng = np.random.default_rng(0)
    for variable in model.network.trainable_variables:
        variable.assign_add(rng.normal(scale=0.1, size=variable.shape).astype(np.float32))
    ids = rng.integers(5, len(tokenizer), size=(3, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    ids[2, 10:], mask[2, 10:] = vocabulary.pad_id, 0
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (3, 1))
    logits = model.logits_at(input_ids=ids, attention_mask=mask, positions=positions).numpy()
    folder.mkdir()
    tokenizer.save_pretrained(folder)
    write_network(trim_vocabulary(model.network, vocabulary, objective), folder)
    np.savez(
        folder / "reference.npz", input_ids=ids, attention_mask=mask, logits=logits[..., : len(tokenizer)]
    )


def write_answers(folder: Path, objective: ObjectiveName) -> None:
    """Asks the export in `folder`, as its users do."""
    tokenizer, vocabulary = open_tokenizer(str(folder), objective)
    model = open_model(str(folder), vocabulary, objective)
    if objective == "mlm":
        filler = MaskFiller(model, tokenizer)
        answers = {
            text: [[prediction.token, prediction.probability] for prediction in next(filler.fill(text, 5))]
            for text in ("w1 <mask> w3", "<mask> w9 w9")
        }
    else:
        greedy = Sampling(temperature=0.0, top_k=None, top_p=None, seed=0)
        texts = ["w1 w2 w3", "w40", "w7 w7 w30"]
        found = Generator(model, tokenizer, greedy).continued(texts, lines=[0, 1, 2], max_new_tokens=8)
        answers = dict(zip(texts, found, strict=True))
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    for objective, types in EXPORTABLE.items():
        for model_type in sorted(types):
            target = Path(sys.argv[1], f"{objective}-{model_type}")
            write_export(objective, model_type, target)
            if model_type in ("roberta", "gpt2"):
                write_answers(target, objective)
