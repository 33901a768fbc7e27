"""The trainer's steps are those of transformers' PyTorch class trained by torch.optim.AdamW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
tf = pytest.importorskip("tensorflow")

from tests.tpu_trainer.model_types import dropout_config, small_config  # noqa: E402
from tpu_trainer.config import (  # noqa: E402
    DataConfig,
    FitConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from tpu_trainer.data.vocabulary import Vocabulary  # noqa: E402
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from  # noqa: E402
from tpu_trainer.network.families.registry import FAMILIES  # noqa: E402
from tpu_trainer.network.masking import Masking  # noqa: E402
from tpu_trainer.network.objectives import Randomness  # noqa: E402
from tpu_trainer.step.task import Task  # noqa: E402
from tpu_trainer.training.build import build_task  # noqa: E402

_STEPS, _WARMUP, _ROWS, _LENGTH = 50, 10, 4, 48
_RATE, _DECAY, _CLIP, _BETAS, _EPSILON, _SEED = 3e-3, 0.1, 1.0, (0.9, 0.95), 1e-8, 7
# Bytes of a text, and special ids after them.
_SPECIAL = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}
_MASK = 259
_VOCABULARY = Vocabulary(
    size=260, special_ids=(256, 257, 258, 259), pad_id=256, mask_id=_MASK, bos_id=257, eos_id=258
)
_TYPES = ["gemma3_text", "gpt2", "llama", "modernbert", "qwen3", "roberta"]


@pytest.mark.parametrize("model_type", _TYPES)
def test_losses_of_50_steps_are_those_of_pytorch(model_type: str, tmp_path: Path) -> None:
    reference = _reference(model_type)
    reference.save_pretrained(tmp_path)
    task, masking = _task(model_type, str(tmp_path))
    text = (Path(__file__).parents[2] / "LICENSE").read_bytes()
    batches = np.frombuffer(text, np.uint8)[: _STEPS * _ROWS * _LENGTH].reshape(_STEPS, _ROWS, _LENGTH)
    compiled_step = tf.function(
        lambda batch: task.step(batch, all_reduce=lambda sums: sums), jit_compile=True, autograph=False
    )
    step_in_pytorch = _step_in_pytorch(reference)
    losses, expected, norms = [], [], []
    for step, ids in enumerate(batches.astype(np.int32)):
        batch = {"input_ids": tf.constant(ids), "row": tf.range(_ROWS) + step * _ROWS}
        inputs, labels = _inputs_and_labels(batch, masking, step)
        loss, norm = step_in_pytorch(inputs, labels)
        expected.append(loss)
        norms.append(norm)
        task.running.assign(tf.zeros_like(task.running))
        losses.append(float(compiled_step(batch)["loss"]))
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert expected[0] - expected[-1] > 1
    assert max(norms) > _CLIP


def _reference(model_type: str) -> Any:
    config = transformers.CONFIG_MAPPING[model_type]
    values = small_config(model_type) | dropout_config(model_type, 0.0)
    positions = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    kind = getattr(transformers, FAMILIES[model_type].class_name)
    torch.manual_seed(0)
    # RoBERTa's positions begin after the padding id.
    return kind._from_config(
        config(**values, **_SPECIAL, vocab_size=_VOCABULARY.size, **{positions: 320}),
        attn_implementation="eager",
    ).train()


def _task(model_type: str, folder: str) -> tuple[Task, Masking | None]:
    """Returns the task of a run that starts from the model in `folder`, and the masking of a masked-LM."""
    family = FAMILIES[model_type]
    config = FitConfig(
        output_dir="run",
        data=DataConfig(train="train"),
        objective=family.objective,
        model=resolve_init_from(ModelConfig(init_from=folder)),
        optimizer=OptimizerConfig(
            learning_rate=_RATE,
            weight_decay=_DECAY,
            clip_norm=_CLIP,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            epsilon=_EPSILON,
        ),
        schedule=ScheduleConfig(name="linear", warmup_steps=_WARMUP),
        train=TrainConfig(steps=_STEPS, batch_size=_ROWS),
        seed=_SEED,
    )
    task = build_task(config, vocabulary=_VOCABULARY, max_length=_LENGTH)
    load_weights(task.objective.model.network, folder, family=family, vocabulary=_VOCABULARY)
    if family.objective == "clm":
        return task, None
    return task, Masking(vocabulary=_VOCABULARY, max_length=_LENGTH, probability=config.mlm.probability)


def _inputs_and_labels(batch: Any, masking: Masking | None, step: int) -> tuple[Any, Any]:
    """Returns a batch as transformers takes it, with the masks of the trainer's step."""
    ids = batch["input_ids"].numpy()
    if masking is None:
        return torch.tensor(ids).long(), torch.tensor(ids).long()
    masked = masking(
        **batch, attention_mask=None, key=Randomness(_SEED, tf.constant(step), training=True).masks
    )
    labels = np.full_like(ids, -100)
    for row, (columns, weights) in enumerate(
        zip(masked.positions.numpy(), masked.weights.numpy(), strict=True)
    ):
        columns = columns[weights > 0]
        labels[row, columns] = ids[row, columns]
    return torch.tensor(masked.input_ids.numpy()).long(), torch.tensor(labels).long()


def _step_in_pytorch(model: Any) -> Any:
    """Returns a function that makes a step and returns its loss and its gradient's norm."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [each for each in parameters if each.dim() > 1], "weight_decay": _DECAY},
            {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0},
        ],
        lr=_RATE,
        betas=_BETAS,
        eps=_EPSILON,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / _WARMUP, (_STEPS - step) / (_STEPS - _WARMUP))
    )

    def step(inputs: Any, labels: Any) -> tuple[float, float]:
        optimizer.zero_grad()
        loss = model(input_ids=inputs, attention_mask=torch.ones_like(inputs), labels=labels).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        optimizer.step()
        schedule.step()
        return float(loss.detach()), float(norm)

    return step
