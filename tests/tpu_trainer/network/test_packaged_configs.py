"""The packaged configurations have the shapes of the published models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tpu_trainer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.weights import weight_specs
from tpu_trainer.verbs.command_line import parse

# The tokenizer's size, the rows' tokens, and the published model's parameters.
PUBLISHED = {
    "gemma3-1b": (262_144, 4096, 999_885_952),
    "gpt2-small": (50_257, 1024, 124_439_808),
    "llama-1b": (128_256, 4096, 1_235_814_400),
    "llama-8b": (128_256, 8192, 8_030_261_248),
    "modernbert-base": (50_368, 1024, 149_655_232),
    "qwen3-0.6b": (151_936, 4096, 596_049_920),
    "roberta-base": (50_265, 512, 124_697_433),
    "smollm3-135m": (49_152, 2048, 134_515_008),
    "smollm3-360m": (49_152, 2048, 361_821_120),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_packaged_config_has_the_published_models_size(name: str) -> None:
    size, length, published = PUBLISHED[name]
    _, config = parse(["fit", "--output_dir", "RUN", "--data.train", "TRAIN", "--config", name])
    vocabulary = Vocabulary(size=size, special_ids=(0,), pad_id=1, mask_id=3, bos_id=0, eos_id=2)
    architecture = configure(
        config.model, objective=config.objective, vocabulary=vocabulary, max_length=length
    ).architecture
    parameters = sum(math.prod(spec.shape) for spec in weight_specs(architecture).values())
    # The table has further rows, and the head's bias elements, for ids that only pad the vocabulary.
    parameters -= (vocabulary.padded_size - size) * (architecture.width + architecture.head.bias)
    # Layers have the same weights here, those without a norm before attention, too.
    parameters -= sum(not kind.norm_attention for kind in architecture.kinds) * architecture.width
    assert parameters == published


def test_every_packaged_config_of_a_published_model_is_compared() -> None:
    names = {path.stem for path in (Path(tpu_trainer.__file__).parent / "configs").iterdir()}
    assert names == {*PUBLISHED, "tiny-clm", "tiny-mlm"}
