"""Changes to the layers that Hugging Face's models build deep inside themselves, which can only be changed in place."""

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
    """What the attention kernel is compiled for."""

    length: int
    """Tokens in a row."""
    dtype: tf.DType
    """attention_kernel.kernel_dtype's."""


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Ways to keep less memory for the backward pass."""

    recompute_blocks: bool = False
    recompute_attention: bool = False
    attention_kernel: KernelOptions | None = None
    """In place of recompute_attention, on a TPU only."""


def apply(
    network: TFPreTrainedModel,
    context: CallContext,
    *,
    separate_documents_of_rows: bool = False,
    memory: MemoryOptions | None = None,
) -> bool:
    """Patches the layers of `network`, which then read the values of a call from `context`.

    Args:
        network: Built, and not patched before.
        context: What the patched layers read while the network is called.
        separate_documents_of_rows: Confine attention to a document, if rows hold several.
        memory: What to keep for the backward pass; None: everything.

    Returns:
        Whether attention is confined to documents: not if the network has no layer that can be.

    Raises:
        UsageError: Models of this type cannot be patched for `memory`.
    """
    memory = memory or MemoryOptions()
    replace_functions(network)
    key_dropout(network, context)
    separates = separate_documents_of_rows and separate_documents(network, context)
    if memory.recompute_blocks:
        recompute_blocks(network, context)
    # After dropout and document masks: these layers draw from the one and may apply the other themselves.
    if memory.attention_kernel is not None:
        kernel = memory.attention_kernel
        use_attention_kernel(network, context, length=kernel.length, dtype=kernel.dtype)
    elif memory.recompute_attention:
        recompute_attention(network)
    return separates
