"""Verb export: a run's newest checkpoint as a folder that Hugging Face's libraries load.

model.safetensors has PyTorch's names and layouts, which transformers reads in PyTorch and in TensorFlow alike;
tf_model.h5 has TensorFlow's own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import TFPreTrainedModel
from transformers.modeling_tf_pytorch_utils import apply_transpose, convert_tf_weight_name_to_pt_weight_name

from tpu_trainer import files
from tpu_trainer.checkpoint import Checkpoints
from tpu_trainer.config import ExportConfig, ObjectiveName
from tpu_trainer.errors import UsageError
from tpu_trainer.model import LanguageModel, build_network
from tpu_trainer.run_folder import RunFolder
from tpu_trainer.vocabulary import Vocabulary, load_tokenizer


def main(config: ExportConfig) -> None:
    """Runs the verb; UsageError where the run has no checkpoint or the output folder holds something else."""
    folder = RunFolder(config.run)
    run = folder.config()
    names = files.list_names(config.output)
    if names and not {"config.json", "model.safetensors"} <= set(names):
        raise UsageError(
            f"--output is {config.output!r}: it holds {names[0]!r} and no exported model; give a new or an empty folder"
        )
    checkpoints = Checkpoints(folder.checkpoints)
    step = checkpoints.latest()
    max_length = checkpoints.metadata(step)["max_length"]
    tokenizer = load_tokenizer(folder.tokenizer)
    vocabulary = Vocabulary.of(tokenizer, folder.tokenizer, run.objective)
    model = LanguageModel.create(
        run.model, objective=run.objective, vocabulary=vocabulary, max_length=max_length, seed=run.seed
    )
    checkpoints.restore(step, **{run.optimizer.evaluated: model.network})
    network = trim_vocabulary(model.network, vocabulary, run.objective)
    tokenizer.model_max_length = max_length
    with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
        tokenizer.save_pretrained(temporary)
        write_network(network, Path(temporary))
        files.copy_tree(temporary, config.output)
    print(f"{config.output}: the model after {step} steps, vocabulary {vocabulary.size}")


def trim_vocabulary(
    network: TFPreTrainedModel, vocabulary: Vocabulary, objective: ObjectiveName = "mlm"
) -> TFPreTrainedModel:
    """The same network without the ids that the tokenizer does not have."""
    padded = network.config.vocab_size
    config = type(network.config).from_dict(network.config.to_dict() | {"vocab_size": vocabulary.size})
    trimmed = build_network(config, objective)
    for target, source in zip(trimmed.weights, network.weights, strict=True):
        value = source.numpy()
        if target.shape != source.shape:
            (axis,) = (axis for axis, size in enumerate(source.shape) if size == padded)
            value = np.take(value, np.arange(vocabulary.size), axis=axis)
        target.assign(value)
    return trimmed


def pytorch_weights(network: TFPreTrainedModel) -> dict[str, np.ndarray]:
    """float32 arrays by the names, and in the layouts, of the PyTorch model of the same configuration.

    The output weights are not among them: PyTorch ties them to the input embeddings, too.
    """
    weights = {}
    for variable in network.weights:
        name, transposed = convert_tf_weight_name_to_pt_weight_name(
            variable.name, tf_weight_shape=variable.shape
        )
        weights[name] = np.ascontiguousarray(apply_transpose(transposed, variable.numpy(), pt_to_tf=False))
    return weights


def write_network(network: TFPreTrainedModel, folder: Path) -> None:
    """Writes config.json, model.safetensors and tf_model.h5 into a local folder."""
    network.config.architectures = [type(network).__name__.removeprefix("TF")]
    network.config.save_pretrained(folder)
    save_file(pytorch_weights(network), folder / "model.safetensors", metadata={"format": "pt"})
    network.save_weights(str(folder / "tf_model.h5"))
