"""Compares networks with transformers' PyTorch classes: the same weights, logits and gradients.

Import this module before TensorFlow: PyTorch cannot be imported after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
for name in ("torch._dynamo", "transformers.masking_utils"):
    pytest.importorskip(name)
revert_weight_conversion = pytest.importorskip("transformers.core_model_loading").revert_weight_conversion
tf = pytest.importorskip("tensorflow")
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from tpu_trainer.config import ModelConfig  # noqa: E402
from tpu_trainer.exports.pytorch_weights import from_pytorch, to_pytorch  # noqa: E402
from tpu_trainer.network.configuration import Configuration, _configuration  # noqa: E402
from tpu_trainer.network.families.family import ConfigValues  # noqa: E402
from tpu_trainer.network.families.registry import FAMILIES  # noqa: E402
from tpu_trainer.network.transformer import Computation, Inputs, head_input, hidden_states  # noqa: E402
from tpu_trainer.network.weights import Network  # noqa: E402
from tpu_trainer.support.errors import UsageError  # noqa: E402

VOCABULARY = 96
PADDING = 0
DERIVED = {"vocab_size": VOCABULARY, "pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}
LENGTH = 12
TOLERANCE = 1e-5
# They change a run's random numbers, which PyTorch draws otherwise.
_RANDOM = re.compile(r"dropout|pdrop|^init")
Values = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """PyTorch's model, and the network with the same weights."""

    configuration: Configuration
    model: Any
    network: Network

    @property
    def masked(self) -> bool:
        """Whether the model is a masked-LM, whose rows may have padding."""
        return self.configuration.family.objective == "mlm"

    def ours(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns PyTorch's weights, or their gradients, by our names."""
        family, architecture = self.configuration.family, self.configuration.architecture
        return {
            name: from_pytorch(family, architecture, weights.__getitem__, name)
            for name in self.network.weights
        }

    def theirs(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns our weights by PyTorch's names."""
        family, architecture = self.configuration.family, self.configuration.architecture
        return dict(to_pytorch(family, architecture, weights, VOCABULARY))


def configuration(model_type: str, values: Values) -> Configuration:
    """Returns the checked configuration of a model with the tests' vocabulary."""
    # transformers changes dictionaries in its arguments.
    return _configuration(ModelConfig(type=model_type, config=deepcopy(values)), DERIVED)


def make_pair(model_type: str, values: Values) -> Pair:
    """Returns a model with random weights, none of which is 0 or 1, and the network that has them."""
    checked = configuration(model_type, values)
    config = transformers.CONFIG_MAPPING[model_type](**checked.values)
    kind = getattr(transformers, checked.family.class_name)
    model = kind._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.08 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + noise if parameter.dim() == 1 else noise)
    pair = Pair(checked, model, Network(checked.architecture))
    for name, value in pair.ours(stored_state(model)).items():
        pair.network.weights[name].assign(value)
    return pair


def assert_same_names(pair: Pair) -> None:
    """Asserts that conversion and inverse agree, and that no weight of PyTorch's class is unknown."""
    family, state = pair.configuration.family, stored_state(pair.model)
    written = pair.theirs({name: weight.numpy() for name, weight in pair.network.weights.items()})
    for name, value in written.items():
        if f"{name.removesuffix('bias')}decoder.bias" in written:
            continue  # BERT's bias of a tied decoder, which an untied one does not use
        np.testing.assert_array_equal(value, state[name], err_msg=name)
    for name in set(state) - set(written):
        copied = name.rpartition(".")[0] in family.copies and _is_copy(pair.model, name, written)
        assert copied or any(re.search(pattern, name) for pattern in family.ignored_weights), name


def assert_loads(pair: Pair, folder: Path) -> None:
    """Asserts that PyTorch's class loads the network's weights from a folder, with no weight too few or too many."""
    weights = pair.theirs({name: weight.numpy() for name, weight in pair.network.weights.items()})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    pair.model.config.save_pretrained(folder)
    model, info = type(pair.model).from_pretrained(folder, output_loading_info=True)
    problems = {kind: names for kind, names in info.items() if names}
    assert not problems, problems
    expected = pair.model.state_dict() | {name: torch.tensor(value) for name, value in weights.items()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def assert_same_function(pair: Pair, *, recompute: str = "nothing", compiled: bool = False) -> None:
    """Asserts equal logits and gradients, to `TOLERANCE` of their range.

    Args:
        pair: The models.
        recompute: The network's policy.
        compiled: Whether XLA compiles the network.
    """
    random = np.random.default_rng(0)
    ids = random.integers(3, VOCABULARY, (2, LENGTH))
    mask = np.ones_like(ids)
    if pair.masked:
        mask[1, -3:], ids[1, -3:] = 0, PADDING
    weights = (random.normal(size=(*ids.shape, VOCABULARY)) * mask[:, :, None]).astype(np.float32)
    outputs = pair.model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    total = (outputs.logits * torch.tensor(weights)).sum()
    if (balance := getattr(outputs, "aux_loss", None)) is not None:
        total += pair.model.config.router_aux_loss_coef * balance
    pair.model.zero_grad()
    total.backward()

    def compute(ids: tf.Tensor, mask: tf.Tensor, weights: tf.Tensor) -> Any:
        inputs = Inputs(ids, mask if pair.masked else None)
        with tf.GradientTape() as tape:
            logits, loss = network_outputs(pair, inputs, recompute=recompute)
            total = tf.reduce_sum(logits * weights) + loss
        return logits, tape.gradient(total, list(pair.network.weights.values()))

    if compiled:
        compute = tf.function(compute, jit_compile=True, autograph=False)
    ours, gradients = compute(tf.constant(ids, tf.int32), tf.constant(mask, tf.int32), tf.constant(weights))
    assert_close(
        ours.numpy() * mask[:, :, None], outputs.logits.detach().numpy() * mask[:, :, None], "logits"
    )
    assert_same_gradients(pair, gradients)


def assert_same_gradients(pair: Pair, gradients: Sequence[Any]) -> None:
    """Asserts that the network's gradients are those of PyTorch's parameters."""
    expected = {}
    for name, parameter in pair.model.named_parameters(remove_duplicate=False):
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        expected[name] = gradient
    expected = _as_stored(pair.model, expected)
    known = pair.theirs({name: weight.numpy() for name, weight in pair.network.weights.items()})
    for name in set(expected) - set(known):
        is_known = not np.any(expected[name]) or _is_copy(pair.model, name, known)
        assert is_known, f"{name} has a gradient, but no equivalent"
    # Layers without a weight of a stack have its initial value there, whose gradient is 0.
    absent = pair.ours({name: np.zeros_like(value) for name, value in expected.items()})
    expected = {name: value - absent[name] for name, value in pair.ours(expected).items()}
    for name, gradient in zip(pair.network.weights, gradients, strict=True):
        # A bias of all keys changes no probability.
        scale = expected[name.replace("attention.key.bias", "attention.query.bias")]
        value = tf.convert_to_tensor(gradient).numpy()
        assert_close(value, expected[name], f"gradient of {name}", scale=np.ptp(scale))


def assert_close(value: np.ndarray, expected: np.ndarray, what: str, *, scale: float | None = None) -> None:
    """Asserts that arrays are equal to `TOLERANCE` of `scale`, by default of the range of `expected`."""
    scale = np.ptp(expected) if scale is None else scale
    error = np.max(np.abs(value - expected)) / scale
    assert error < TOLERANCE, f"{what}: error {error:.1e} of the range {scale:.1e}"


def network_outputs(pair: Pair, inputs: Inputs, *, recompute: str = "nothing") -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the network's logits, float32[B, L, V], and the layers' loss."""
    architecture = pair.configuration.architecture
    values = {name: tf.convert_to_tensor(weight) for name, weight in pair.network.weights.items()}
    hidden, loss = hidden_states(
        architecture, values, inputs, Computation(recompute=recompute), training=True
    )
    hidden = head_input(architecture, values, hidden)
    matrix = values["embeddings.tokens.weight" if architecture.tied else "head.weight"]
    logits = tf.einsum("blh,vh->blv", hidden, matrix) + values.get("head.bias", 0.0)
    cap = architecture.head.soft_cap
    return logits if cap is None else cap * tf.tanh(logits / cap), loss


def assert_documents_apart(pair: Pair, lengths: Sequence[int] = (5, 7)) -> None:
    """Asserts that documents in one row get the logits that PyTorch computes for each of them."""
    ids = np.random.default_rng(1).integers(3, VOCABULARY, (1, sum(lengths)))
    starts = np.cumsum([0, *lengths[:-1]])
    with torch.no_grad():
        parts = [
            pair.model(input_ids=torch.tensor(ids[:, start : start + length])).logits.numpy()
            for start, length in zip(starts, lengths, strict=True)
        ]
    inputs = Inputs(
        tf.constant(ids, tf.int32),
        tf.ones_like(tf.constant(ids, tf.int32)) if pair.masked else None,
        tf.constant(np.concatenate([np.arange(length) for length in lengths])[None], tf.int32),
        tf.constant(np.repeat(np.arange(len(lengths)), lengths)[None], tf.int32),
    )
    assert_close(network_outputs(pair, inputs)[0].numpy(), np.concatenate(parts, axis=1), "logits")


def assert_all_values_compared(model_type: str, base: Values, cases: Sequence[Values]) -> None:
    """Asserts that each value of a configuration that the family reads differs from that of `base` in some case.

    Values that change only a run's random numbers need no case, but must change the architecture. Neither do those
    that are refused.
    """
    kind, family = transformers.CONFIG_MAPPING[model_type], FAMILIES[model_type]
    complete = kind(**deepcopy(base), **DERIVED).to_dict()
    read = ConfigValues(complete)
    architecture = family.architecture(read)
    others = [kind(**deepcopy(base | case), **DERIVED).to_dict() for case in cases]
    for name in read.read - set(DERIVED):
        if _RANDOM.search(name):
            assert family.architecture(ConfigValues(complete | {name: 0.25})) != architecture, name
        elif name in complete and all(other[name] == complete[name] for other in others):
            with pytest.raises(UsageError, match=f"{name} .* not supported"):
                family.architecture(ConfigValues(complete | {name: not complete[name]}))
    assert not read.read & family.without_effect


def _is_copy(model: Any, name: str, others: Collection[str]) -> bool:
    """Returns whether a weight of a model is another one, too."""
    parameters = revert_weight_conversion(model, dict(model.named_parameters(remove_duplicate=False)))
    return any(parameters.get(other) is parameters[name] for other in others)


def stored_state(model: Any) -> dict[str, np.ndarray]:
    """Returns a model's weights under the names and in the shapes of its files."""
    return _as_stored(model, model.state_dict())


def _as_stored(model: Any, tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns a model's weights, or values for them, under the names and in the shapes of its files."""
    return {name: value.detach().numpy() for name, value in revert_weight_conversion(model, tensors).items()}
