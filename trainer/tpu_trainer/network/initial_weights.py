"""Initializes weights with the distributions of PyTorch's classes.

Some of transformers' TensorFlow classes use Keras' default initializers or omit a factor. The weights below are those
whose distributions differ, as measured by tests/tpu_trainer_export/initial_weights.py.
"""

from __future__ import annotations

import math
import re
import zlib
from functools import partial

import tensorflow as tf
from transformers import TFPreTrainedModel

from tpu_trainer.network.initial_values import InitialValues

# By model type, a pattern for the end of the names of these weights.
_REDRAWN = {
    "ctrl": r"(Wq|Wk|Wv|dense|0|2)/kernel",
    "deberta": r"attention/output/dense/kernel",
    "deberta-v2": r"attention/output/dense/kernel",
    "electra": r"(embeddings_project|generator_predictions/dense)/kernel",
    # The projections into the residual stream, two per layer, as in GPT-2's paper and Megatron-LM.
    "gpt2": r"c_proj/weight",
    "mistral": r"embed_tokens/embeddings|(self_attn|mlp)/\w+/kernel",
    "opt": r"embed_tokens/weight|embed_positions/embeddings|kernel",
    "roformer": r"embeddings_project/kernel",
}


def initialize_as_pytorch(network: TFPreTrainedModel, *, seed: int, initial: InitialValues) -> None:
    """Redraws the weights of a new `network` whose distribution differs in PyTorch, from `seed` and their names."""
    config = network.config
    std = getattr(config, "initializer_range", None) or getattr(config, "init_std", None)
    if config.model_type == "gpt2":
        std /= math.sqrt(2 * config.n_layer)
    ending = _REDRAWN.get(config.model_type)
    for variable in network.trainable_variables if ending else ():
        if re.search(rf"/({ending}):0$", variable.name):
            draw = partial(
                tf.random.stateless_normal,
                variable.shape,
                seed=[seed, zlib.crc32(variable.name.encode())],
                stddev=std,
                alg="philox",
            )
            initial.assign(variable, draw)
