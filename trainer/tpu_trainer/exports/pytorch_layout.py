"""Converts TensorFlow's weights to the names and layouts of PyTorch's class."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from transformers import TFPreTrainedModel
from transformers.modeling_tf_pytorch_utils import (
    TransposeType,
    apply_transpose,
    convert_tf_weight_name_to_pt_weight_name,
)

# By model type, the layers whose names differ: TensorFlow's, PyTorch's.
_OTHER_NAMES = {"deberta-v2": {".pos_proj.": ".pos_key_proj.", ".pos_q_proj.": ".pos_query_proj."}}


def pytorch_name(variable: tf.Variable, model_type: str) -> tuple[str, TransposeType]:
    """Returns the name of `variable` in PyTorch, and how to transpose its axes."""
    name, transposed = convert_tf_weight_name_to_pt_weight_name(variable.name, tf_weight_shape=variable.shape)
    for tf_part, pytorch_part in _OTHER_NAMES.get(model_type, {}).items():
        name = name.replace(tf_part, pytorch_part)
    return name, transposed


def pytorch_weights(network: TFPreTrainedModel) -> dict[str, np.ndarray]:
    """Returns float32 arrays by PyTorch's names.

    Dense kernels are transposed: [in, out] in TensorFlow, [out, in] in PyTorch. GPT-2's Conv1D is [in, out] in both.
    Output weights that are tied to the input embeddings are omitted, because PyTorch ties them, too.
    """
    weights = {}
    for variable in network.weights:
        name, transposed = pytorch_name(variable, network.config.model_type)
        value = variable.numpy()
        if name.endswith(".bias") and value.ndim == 2:  # Conv1D's, and CTRL's output bias: [1, out]
            value = value[0]
        else:
            value = apply_transpose(transposed, value, pt_to_tf=False)
        weights[name] = np.ascontiguousarray(value)
    return weights
