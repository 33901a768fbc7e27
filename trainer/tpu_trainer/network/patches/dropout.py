"""Makes dropout layers derive their bits from the call's key instead of a generator."""

from __future__ import annotations

import tf_keras as keras

from tpu_trainer.network.call_context import CallContext
from tpu_trainer.network.dropout import KeyedDropout, KeyedStableDropout

# By name, so that DeBERTa's modules are not imported for other models.
_KEYED_CLASSES = {
    "Dropout": KeyedDropout,
    "TFDebertaStableDropout": KeyedStableDropout,
    "TFDebertaV2StableDropout": KeyedStableDropout,
}


def key_dropout(model: keras.Model, context: CallContext) -> None:
    """Makes every dropout layer in `model` derive its bits from the context's key."""
    layers = [layer for layer in model.submodules if type(layer).__name__ in _KEYED_CLASSES]
    for index, layer in enumerate(layers):
        layer.__class__ = _KEYED_CLASSES[type(layer).__name__]
        layer.context = context
        layer.index = index
