"""TensorFlow's weights under the names, and in the layouts, of the PyTorch model of the same configuration."""

from __future__ import annotations

import numpy as np
from transformers import TFPreTrainedModel
from transformers.modeling_tf_pytorch_utils import apply_transpose, convert_tf_weight_name_to_pt_weight_name

from tpu_trainer.config import ObjectiveName

# Model types whose exports give the same logits in PyTorch, in transformers 4 and 5: `make test-export` compares them.
# Not among them, though transformers has TensorFlow classes: albert and mpnet have weights that nothing trains;
# convbert, esm, mobilebert, openai-gpt and xglm differ between frameworks or transformers' versions; funnel, layoutlm
# and tapas need more than tokens; longformer does not compile with XLA; as causal models, transfo-xl, xlm and xlnet
# have no plain next-token form, and TensorFlow's roformer sees the tokens that are to come.
EXPORTABLE: dict[ObjectiveName, frozenset[str]] = {
    "mlm": frozenset(
        (
            "bert",
            "camembert",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "flaubert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roformer",
            "xlm",
            "xlm-roberta",
        )
    ),
    "clm": frozenset(
        (
            "bert",
            "camembert",
            "ctrl",
            "gpt2",
            "gptj",
            "mistral",
            "opt",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
        )
    ),
}


def pytorch_weights(network: TFPreTrainedModel) -> dict[str, np.ndarray]:
    """float32 arrays by PyTorch's names.

    Dense kernels are transposed: [in, out] here, [out, in] in PyTorch. GPT-2's Conv1D is [in, out] in both. Output
    weights that are tied to the input embeddings are not among them: PyTorch ties them, too.
    """
    weights = {}
    for variable in network.weights:
        name, transposed = convert_tf_weight_name_to_pt_weight_name(
            variable.name, tf_weight_shape=variable.shape
        )
        value = variable.numpy()
        if name.endswith(".bias") and value.ndim == 2:  # Conv1D's, and CTRL's output bias: [1, out]
            value = value[0]
        else:
            value = apply_transpose(transposed, value, pt_to_tf=False)
        weights[name] = np.ascontiguousarray(value)
    return weights
