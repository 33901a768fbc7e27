"""Model FLOPs utilization (MFU): the floating-point operations of training relative to the devices' peak.

Counted as in PaLM's appendix B (Chowdhery et al., 2022, arXiv 2204.02311): matrix products only, three times those of
the forward pass, without recomputation to save memory.
"""

from __future__ import annotations

import re

import tensorflow as tf
from transformers import TFPreTrainedModel

from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.strategy import is_tpu
from tpu_trainer.support.chips import CHIPS, KINDS

# Dense bfloat16 operations per second of a TensorFlow device.
_TPUS = {name: chip.peak_flops / chip.devices for name, chip in CHIPS.items()}
# Not in CHIPS. cloud.google.com/tpu/docs/v2: "Peak compute per chip", which is two devices.
_TPUS["v2"] = 46e12 / 2
# Dense operations per second on tensor cores: bfloat16, and TensorFloat-32, which TensorFlow uses for float32.
# From NVIDIA's data sheets, halved if they are for sparse matrices. The first matching name is used.
_GPUS = (
    (r"B200", 2250e12, 1125e12),
    (r"H200|H100.*HBM3|H100.*SXM|GH200", 989e12, 494e12),
    (r"H100", 756e12, 378e12),  # the PCIe card
    (r"A100", 312e12, 156e12),
    (r"L40S", 362e12, 183e12),
    (r"\bL4\b", 121e12, 60e12),
    (r"\bA10\b", 125e12, 62.5e12),
    (r"RTX 4090", 165e12, 82.6e12),
    (r"RTX 3090", 71e12, 35.6e12),
)
_EMBEDDING = re.compile(r"(^|/)(\w*embeddings?|wte|wpe)(/|:|$)")
_HEAD = re.compile(r"(^|/)(lm_head|mlm|predictions)(/|$)")


def gpu_peak_flops(name: str, *, bfloat16: bool) -> float | None:
    """Returns operations per second of the GPU called `name`; None if it is not in the table."""
    for pattern, in_bfloat16, in_tf32 in _GPUS:
        if re.search(pattern, name):
            return in_bfloat16 if bfloat16 else in_tf32
    return None


def tpu_peak_flops(generation: str) -> float | None:
    """Returns operations per second of one TensorFlow device of a TPU such as v5e; None if it is unknown.

    TPUs compute float32 products in bfloat16 by default.
    """
    return _TPUS.get(generation)


def peak_flops(strategy: tf.distribute.Strategy, *, bfloat16: bool, tpu: str | None = None) -> float | None:
    """Returns operations per second of all replicas together; None if the peak is unknown, as for CPUs.

    Args:
        strategy: The devices.
        bfloat16: Whether products are in bfloat16.
        tpu: The generation of the strategy's TPU; None: unknown.
    """
    replicas = strategy.num_replicas_in_sync
    if is_tpu(strategy):
        one = None if tpu is None else tpu_peak_flops(tpu)
        return None if one is None else replicas * one
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")
    one = gpu_peak_flops(name, bfloat16=bfloat16)
    return None if one is None else replicas * one


def device_peak_flops(mesh: DeviceMesh, *, bfloat16: bool) -> float | None:
    """Returns operations per second of all devices of a mesh; None if the peak is unknown, as for CPUs."""
    one = None
    if mesh.platform == "gpu":
        one = gpu_peak_flops(mesh.kind, bfloat16=bfloat16)
    elif mesh.platform == "tpu":
        one = tpu_peak_flops(KINDS.get(mesh.kind, ""))
    return None if one is None else mesh.devices * one


def training_flops_per_row(network: TFPreTrainedModel, *, max_length: int, predicted: int) -> float:
    """Returns the floating-point operations of the forward and backward pass of a row.

    Args:
        network: A Hugging Face model with the usual names of weights.
        max_length: Tokens in the row.
        predicted: Positions in the row that the output layer predicts.
    """
    config = network.config
    body = head = 0
    for variable in network.trainable_variables:
        if len([size for size in variable.shape if size != 1]) < 2 or _EMBEDDING.search(variable.name):
            continue
        if _HEAD.search(variable.name):
            head += variable.shape.num_elements()
        else:
            body += variable.shape.num_elements()
    # Embedding lookups are free. The product with the output matrix counts, whether or not it shares the embedding.
    if not any(config.vocab_size in variable.shape and _HEAD.search(variable.name) and variable.shape.rank == 2
               for variable in network.trainable_variables):  # fmt: skip
        head += config.vocab_size * config.hidden_size
    # Per layer, scores and weighted sums each take max_length² · hidden multiplications and as many additions.
    attention = 4 * max_length**2 * config.hidden_size * config.num_hidden_layers
    forward = 2 * body * max_length + 2 * head * predicted + attention
    return 3.0 * forward
