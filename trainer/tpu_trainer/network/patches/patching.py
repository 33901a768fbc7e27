"""Changes to the layers of Hugging Face's models. The models build them internally, so they are patched in place."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
from transformers import TFPreTrainedModel

from tpu_trainer.network.call_context import CallContext
from tpu_trainer.network.patches.attention import recompute_attention, use_attention_kernel
from tpu_trainer.network.patches.document_mask import separate_documents
from tpu_trainer.network.patches.dropout import key_dropout
from tpu_trainer.network.patches.functions import replace_functions
from tpu_trainer.network.patches.recomputation import recompute_blocks


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """The shapes and the dtype of the attention kernel."""

    length: int
    """Tokens in a row."""
    dtype: tf.DType
    """See attention_kernel.kernel_dtype."""
    devices: int = 1
    """Devices that divide the heads."""


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Options to keep fewer activations for the backward pass."""

    recompute_blocks: bool = False
    recompute_attention: bool = False
    attention_kernel: KernelOptions | None = None
    """Takes precedence over recompute_attention; for a TPU only."""


def apply(
    network: TFPreTrainedModel,
    context: CallContext,
    *,
    separate_documents_of_rows: bool = False,
    memory: MemoryOptions | None = None,
) -> bool:
    """Patches the layers of `network`.

    Args:
        network: A built network that is not patched yet.
        context: The values that the patched layers read during a call.
        separate_documents_of_rows: Restrict attention to each document of a row.
        memory: Options to save memory; None: keep all activations.

    Returns:
        Whether attention is restricted to documents; False if the network has no layer that supports it.

    Raises:
        UsageError: If models of this type do not support `memory`.
    """
    memory = memory or MemoryOptions()
    replace_functions(network)
    key_dropout(network, context)
    separates = separate_documents_of_rows and separate_documents(network, context)
    if memory.recompute_blocks:
        recompute_blocks(network, context)
    # After dropout and document masks, because these layers use patched dropout and may apply the masks themselves.
    if memory.attention_kernel is not None:
        kernel = memory.attention_kernel
        use_attention_kernel(
            network, context, length=kernel.length, dtype=kernel.dtype, devices=kernel.devices
        )
    elif memory.recompute_attention:
        recompute_attention(network)
    return separates
