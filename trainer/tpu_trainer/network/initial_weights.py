"""Initial weights of models from scratch, as PyTorch's classes draw them.

Some of transformers' TensorFlow classes leave it to Keras, or leave out a factor. Which weights these are was found by
measuring all of them in both: tests/tpu_trainer_export/initial_weights.py. The other weights stay as they are drawn.
"""

from __future__ import annotations

import math
import re
import zlib

import tensorflow as tf
from transformers import TFPreTrainedModel

# By model type: what the names of the weights end with that are drawn again.
_REDRAWN = {
    "ctrl": r"(Wq|Wk|Wv|dense|0|2)/kernel",
    "deberta": r"attention/output/dense/kernel",
    "deberta-v2": r"attention/output/dense/kernel",
    "electra": r"(embeddings_project|generator_predictions/dense)/kernel",
    # The projections that add to the residual stream: two for each layer, as in GPT-2's paper and Megatron-LM.
    "gpt2": r"c_proj/weight",
    "mistral": r"embed_tokens/embeddings|(self_attn|mlp)/\w+/kernel",
    "opt": r"embed_tokens/weight|embed_positions/embeddings|kernel",
    "roformer": r"embeddings_project/kernel",
}


def draw_as_pytorch(network: TFPreTrainedModel, *, seed: int) -> None:
    """Draws those weights of a new `network` again that PyTorch's class draws from another distribution.

    A weight is a function of `seed` and its name.
    """
    config = network.config
    std = getattr(config, "initializer_range", None) or getattr(config, "init_std", None)
    if config.model_type == "gpt2":
        std /= math.sqrt(2 * config.n_layer)
    ending = _REDRAWN.get(config.model_type)
    for variable in network.trainable_variables if ending else ():
        if re.search(rf"/({ending}):0$", variable.name):
            drawn = tf.random.stateless_normal(
                variable.shape, seed=[seed, zlib.crc32(variable.name.encode())], stddev=std, alg="philox"
            )
            variable.assign(drawn)
