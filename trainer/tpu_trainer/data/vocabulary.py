"""A tokenizer's size, special ids and word boundaries."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from tokenmill_reader import Dataset, DatasetError
from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.tokenizer import JSON, load_tokenizer
from tpu_trainer.data.words import Words
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

# A TPU's matrix unit has tiles of 128 lanes; GPUs are fast with multiples of 64.
_PADDING_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids of a tokenizer."""

    size: int
    special_ids: tuple[int, ...]
    """Ids that are neither masked nor used as random replacements."""
    pad_id: int | None
    mask_id: int | None
    bos_id: int | None
    eos_id: int | None
    words: Words | None = field(default=None, compare=False)
    """Where words begin; None if the tokens do not show it."""

    @property
    def padded_size(self) -> int:
        """The model's vocabulary size: `size` rounded up to a multiple of 128. The surplus ids are never predicted."""
        return -(-self.size // _PADDING_MULTIPLE) * _PADDING_MULTIPLE

    @property
    def padding_id(self) -> int | None:
        """The id that marks padding in rows without an attention mask; None if it can also occur in text."""
        return None if self.pad_id in (self.bos_id, self.eos_id) else self.pad_id

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, path: str, objective: ObjectiveName = "mlm") -> Vocabulary:
        """Returns the vocabulary of a Hugging Face tokenizer.

        Raises:
            UsageError: If it lacks a token that `objective` needs.
        """
        for name in ("pad", "mask") if objective == "mlm" else ():
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise UsageError(
                    f"{path}: the tokenizer has no {name} token, which masked language modelling needs; "
                    f"add one with add_special_tokens({{'{name}_token': …}}) and prepare the dataset again, "
                    "or train with --objective clm"
                )
        bos_id = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
        eos_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        # Ids may have gaps, and an embedding needs a row for the largest id.
        size = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))
        return cls(
            size=size,
            special_ids=tuple(sorted(set(tokenizer.all_special_ids))),
            pad_id=tokenizer.pad_token_id,
            mask_id=tokenizer.mask_token_id,
            bos_id=bos_id,
            eos_id=eos_id,
            words=Words.from_tokenizer(tokenizer, size),
        )


def tokenizer_folder(split: Dataset, folder: str | None = None) -> str:
    """Returns `folder`, or the folder of the tokenizer beside a split if it is None.

    Raises:
        UsageError: If there is none, or it is not the one that the split was prepared with.
    """
    try:
        path = folder or split.tokenizer_path
    except DatasetError as error:
        raise UsageError(f"{error}, or give the right tokenizer with --data.tokenizer") from error
    if path is None:
        raise UsageError(
            f"{split.path}: has no tokenizer in ../tokenizer; give the tokenizer's folder with --data.tokenizer"
        )
    return path


def load_vocabulary(
    split: Dataset, objective: ObjectiveName = "mlm", *, tokenizer: str | None = None
) -> Vocabulary:
    """Loads the vocabulary of the tokenizer that `split` was prepared with.

    Args:
        split: The split.
        objective: The objective of the training.
        tokenizer: The tokenizer's folder, if it is not the one beside the split.

    Raises:
        UsageError: If the tokenizer is unknown, differs from the manifest, or lacks a token that `objective` needs.
    """
    path = tokenizer_folder(split, tokenizer)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(path), path, objective)
    if split.manifest is not None:
        _check(path, vocabulary, split.manifest["tokenizer"], split.path)
    return vocabulary


def _check(path: str, vocabulary: Vocabulary, expected: dict[str, Any], dataset: str) -> None:
    remedy = (
        f"it is not the tokenizer that {dataset} was prepared with; give the right one with --data.tokenizer"
    )
    if vocabulary.size != expected["vocab_size"]:
        raise UsageError(
            f"{path}: {vocabulary.size} tokens, but the manifest specifies {expected['vocab_size']}: {remedy}"
        )
    json_path = files.join(path, JSON)
    if not files.is_file(json_path):
        raise UsageError(f"{json_path}: missing: {remedy}")
    sha256 = hashlib.sha256(files.read_text(json_path).encode()).hexdigest()
    if sha256 != expected.get("sha256"):
        raise UsageError(
            f"{json_path}: its SHA-256 is {sha256}, but the manifest specifies {expected.get('sha256')}: {remedy}"
        )
