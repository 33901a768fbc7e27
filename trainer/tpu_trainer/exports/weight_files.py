"""Reads and writes weights as PyTorch's classes save them: model.safetensors, or parts of it with an index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tpu_trainer.support.errors import UsageError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = frozenset(("F16", "BF16", "F32", "F64"))


class WeightFiles:
    """The weights in a folder, which are read one at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        """
        Args:
            folder: A local folder.
            name: What messages call it.

        Raises:
            UsageError: If there are none, or the files contradict each other or are damaged.
        """
        self._folder = folder
        self._name = name
        self._files: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Name → shape."""
        for file in self._file_names():
            self._add(file)

    def _file_names(self) -> list[str]:
        if (self._folder / WHOLE).is_file():
            return [WHOLE]
        if not (self._folder / INDEX).is_file():
            remedy = "use a folder written by `export`, or by save_pretrained() of PyTorch's class"
            if any(self._folder.glob("pytorch_model*.bin")):
                remedy = (
                    "only pytorch_model.bin, which may contain code; load it with PyTorch's class and write it again "
                    "with save_pretrained()"
                )
            raise UsageError(f"{self._name}: no {WHOLE} there; {remedy}")
        place = f"{self._name}/{INDEX}"
        try:
            names = set(json.loads((self._folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"{place}: not an index of weights ({error}); download it again") from error
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not (self._folder / name).is_file():
                raise UsageError(f"{place}: no file {name!r} in the folder; download it again")
        return sorted(names)

    def _add(self, file: str) -> None:
        place = f"{self._name}/{file}"
        try:
            with safe_open(self._folder / file, "np") as opened:
                form = (opened.metadata() or {}).get("format", "pt")
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
                types = {name: part.get_dtype() for name, part in slices.items()}
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{place}: cannot be read ({error}); download it again") from error
        if form != "pt":
            raise UsageError(f"{place}: its format is {form!r}, not 'pt' (PyTorch); save it again in PyTorch")
        for name, dtype in types.items():
            if dtype not in _FLOATS and not name.endswith(_BUFFERS):
                raise UsageError(
                    f"{place}: {name} has the type {dtype}; weights must be {', '.join(sorted(_FLOATS))}: "
                    "dequantize the model first"
                )
        self.shapes |= shapes
        self._files |= dict.fromkeys(shapes, file)

    def read(self, name: str) -> np.ndarray:
        """Returns a weight, in the file's type. Raises KeyError if there is none."""
        with safe_open(self._folder / self._files[name], "np") as opened:
            return opened.get_tensor(name)


# Constants that earlier releases of transformers stored.
_BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias")


def write_weights(
    folder: Path,
    weights: Iterable[tuple[str, np.ndarray]],
    shapes: Mapping[str, Sequence[int]],
    *,
    max_bytes: int = 5 * 10**9,
) -> None:
    """Writes float32 weights as save_pretrained() of PyTorch's class does.

    Args:
        folder: An existing folder.
        weights: Names and values in the order of `shapes`. No more than two files' are in memory.
        shapes: Name → shape.
        max_bytes: Of a file, as long as no weight is larger.
    """
    plan = split_state_dict_into_shards_factory(
        dict(shapes),
        get_storage_size=lambda shape: 4 * int(np.prod(shape)),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_bytes,
    )
    files = plan.filename_to_tensors
    pending: dict[str, dict[str, np.ndarray]] = {}
    for name, value in weights:
        file = plan.tensor_to_filename[name]
        values = pending.setdefault(file, {})
        values[name] = value
        if len(values) == len(files[file]):
            save_file(pending.pop(file), folder / file, metadata={"format": "pt"})
    if len(files) > 1:
        index: dict[str, Any] = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
