"""What the trainer needs to know of a tokenizer: its size and its special ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tpu_trainer import files
from tpu_trainer.dataset import Split
from tpu_trainer.errors import UsageError

# A TPU's matrix unit works on tiles of 128 lanes, and GPUs like multiples of 64.
_PADDING_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids of a tokenizer: `size` of them, `special_ids` never masked, never drawn at random."""

    size: int
    special_ids: tuple[int, ...]
    pad_id: int
    mask_id: int
    bos_id: int | None
    eos_id: int | None

    @property
    def padded_size(self) -> int:
        """`size` rounded up to a multiple of 128: the model's. The surplus ids are never predicted."""
        return -(-self.size // _PADDING_MULTIPLE) * _PADDING_MULTIPLE

    @classmethod
    def of(cls, tokenizer: Any, path: str) -> Vocabulary:
        """The vocabulary of a Hugging Face tokenizer; UsageError where it lacks a pad or a mask token."""
        for name in ("pad", "mask"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise UsageError(
                    f"{path}: the tokenizer has no {name} token, which masked language modelling needs; "
                    f"add one with add_special_tokens({{'{name}_token': …}}) and prepare the dataset again"
                )
        first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
        last = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        return cls(
            size=len(tokenizer),
            special_ids=tuple(sorted(set(tokenizer.all_special_ids))),
            pad_id=tokenizer.pad_token_id,
            mask_id=tokenizer.mask_token_id,
            bos_id=first,
            eos_id=last,
        )


def load_tokenizer(path: str) -> Any:
    """The Hugging Face tokenizer in folder `path` (local or a URL); UsageError where there is none."""
    from transformers import AutoTokenizer  # seconds to import

    if not files.is_dir(path):
        raise UsageError(f"{path}: no such folder; --data.tokenizer names the tokenizer's folder")
    if not {"tokenizer.json", "tokenizer_config.json"} & set(files.list_names(path)):
        raise UsageError(
            f"{path}: neither tokenizer.json nor tokenizer_config.json there: not a tokenizer's folder"
        )
    with files.local_copy(path) as folder:
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{path}: AutoTokenizer cannot load it: {error}") from error


def load_vocabulary(split: Split) -> Vocabulary:
    """The vocabulary of the tokenizer that `split` was made with.

    Raises UsageError where no tokenizer is known, or where it is not the one the manifest describes.
    """
    path = split.tokenizer_path
    if path is None:
        raise UsageError(
            f"{split.path}: no manifest and no ../tokenizer beside it; name it with --data.tokenizer"
        )
    vocabulary = Vocabulary.of(load_tokenizer(path), path)
    if split.manifest is not None:
        _check(path, vocabulary, split.manifest["tokenizer"], split.path)
    return vocabulary


def _check(path: str, vocabulary: Vocabulary, expected: dict[str, Any], dataset: str) -> None:
    remedy = f"it is not the tokenizer that {dataset} was made with; name that one with --data.tokenizer"
    if vocabulary.size != expected["vocab_size"]:
        raise UsageError(
            f"{path}: {vocabulary.size} tokens where the manifest says {expected['vocab_size']}: {remedy}"
        )
    json_path = files.join(path, "tokenizer.json")
    if not files.is_file(json_path):
        raise UsageError(f"{json_path}: missing: {remedy}")
    found = hashlib.sha256(files.read_text(json_path).encode()).hexdigest()
    if found != expected["sha256"]:
        raise UsageError(
            f"{json_path}: SHA-256 {found} where the manifest says {expected['sha256']}: {remedy}"
        )
