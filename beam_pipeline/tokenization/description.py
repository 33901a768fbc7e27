"""What a run needs to know of a tokenizer, read from its folder without transformers where that is exact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer
from tokenizers.processors import Sequence

from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.control_tokens import find_control_ids
from beam_pipeline.tokenization.documents import Template
from beam_pipeline.tokenization.tokenizer_files import (
    CONFIG,
    JSON,
    MAP,
    SPECIAL_NAMES,
    additional_tokens,
    content,
    load_files,
    parse_json,
)
from beam_pipeline.tokenization.tokenizer_json import parse_tokenizer

# The tokens that mark a document's bounds or stand in for its words.
_BOUNDARY_NAMES = ("mask", "bos", "eos", "cls", "sep")


@dataclass(frozen=True)
class TokenizerDescription:
    """A tokenizer, resolved once by the launcher.

    Attributes:
      files: the files of its folder by name: what is copied to `OUT/tokenizer`.
      notes: lines for the user about how it was read.
      vocab_size: `len(tokenizer)`.
      special_token_ids: the id of each of `SPECIAL_NAMES`, None where it has none.
      all_special_ids: sorted.
      control_ids: those that no text may encode to: see `control_tokens`.
      template: what stands around each document.
    """

    files: Mapping[str, bytes] = field(repr=False)
    notes: tuple[str, ...]
    vocab_size: int
    special_token_ids: Mapping[str, int | None]
    all_special_ids: tuple[int, ...]
    control_ids: frozenset[int]
    template: Template

    @property
    def json(self) -> str:
        """The text of `tokenizer.json`."""
        return self.files[JSON].decode()

    @property
    def sha256(self) -> str:
        """Of `tokenizer.json`, in hex."""
        return hashlib.sha256(self.files[JSON]).hexdigest()

    def template_of(self, append_eos: bool) -> Template:
        """What stands around each document; with `append_eos` an eos token ends it, once.

        Raises:
          UsageError: where the tokenizer has no eos token to append.
        """
        if not append_eos:
            return self.template
        eos = self.require("eos", "--append_eos")
        prefix, suffix = self.template.prefix, self.template.suffix
        return Template(prefix, suffix if suffix[-1:] == (eos,) else (*suffix, eos))

    def require(self, name: str, purpose: str) -> int:
        """The id of a special token.

        Raises:
          UsageError: where the tokenizer has none.
        """
        token = self.special_token_ids[name]
        if token is None:
            raise UsageError(
                f"--tokenizer: it has no {name} token, which {purpose} needs; add one "
                f"(tokenizer.add_special_tokens({{'{name}_token': …}})) and save it again"
            )
        return token


def describe_tokenizer(path: str, pad_token: str | None = None) -> TokenizerDescription:
    """Reads a tokenizer from a folder (local or remote), or from the hub by its name.

    Args:
      path: the folder or name.
      pad_token: a token of its vocabulary that is to be its pad token; None: that which it has.

    Raises:
      UsageError: there is none, or it is none that `tokenizers` can run in the same way each time.
    """
    files, notes = load_files(path)
    if pad_token is not None:
        files = _with_pad_token(files, pad_token)
    parsed = parse_tokenizer(files[JSON].decode())
    if parsed["model"].get("dropout"):
        raise UsageError(
            f"--tokenizer {path}: its model drops merges at random (dropout {parsed['model']['dropout']}), so no two "
            'runs would give the same dataset; set "dropout" to null in its tokenizer.json'
        )
    tokenizer = Tokenizer.from_buffer(files[JSON])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if pad_token is not None and tokenizer.token_to_id(pad_token) is None:
        raise UsageError(f"--pad_token {pad_token}: is not in the vocabulary of --tokenizer {path}")
    config = _config(files, parsed, path)
    special = {name: _token_id(tokenizer, config, name, path) for name in SPECIAL_NAMES}
    additional = set(map(tokenizer.token_to_id, additional_tokens(config))) - {None}
    boundaries = {special[name] for name in _BOUNDARY_NAMES} - {None}
    marked = {token["id"] for token in parsed["added_tokens"] if token["special"]}
    control = find_control_ids(parsed, boundaries, additional | ({special["pad"]} - {None}))
    return TokenizerDescription(
        files=files,
        notes=tuple(notes),
        # Ids may have gaps: an embedding needs a row for the largest.
        vocab_size=max(tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1) + 1),
        special_token_ids=special,
        all_special_ids=tuple(sorted(marked | additional | (set(special.values()) - {None}))),
        control_ids=control,
        template=find_template(tokenizer),
    )


def _config(files: Mapping[str, bytes], parsed: Mapping, path: str) -> dict:
    """The tokenizer's config; older folders name their special tokens in a file beside it."""
    config, names = parse_json(files, CONFIG, path), parse_json(files, MAP, path)
    if "added_tokens_decoder" in config:
        names = {}
    padding = {"pad_token": parsed["padding"]["pad_token"]} if parsed["padding"] else {}
    return {**padding, **config, **names}


def _with_pad_token(files: Mapping[str, bytes], token: str) -> dict[str, bytes]:
    """The files, with this pad token in those that name the special tokens."""
    changed = {
        name: json.dumps(
            {**json.loads(files[name]), "pad_token": token}, indent=2, ensure_ascii=False
        ).encode()
        for name in (MAP, CONFIG)
        if name in files
    }
    return {**files, **changed}


def _token_id(tokenizer: Tokenizer, config: Mapping, name: str, path: str) -> int | None:
    token = config.get(f"{name}_token")
    if not token:
        return None
    token = content(token)
    found = tokenizer.token_to_id(token)
    if found is None:
        raise UsageError(f"--tokenizer {path}: its {name}_token {token!r} is not in its vocabulary")
    return found


def find_template(tokenizer: Tokenizer) -> Template:
    """What the tokenizer's post-processor puts around a text, found by encoding one with it and without.

    Raises:
      UsageError: where it does more than put tokens before and after.
    """
    if tokenizer.post_processor is None:
        return Template((), ())
    texts = ["a", "b 1"]
    full = [tokenizer.encode(text).ids for text in texts]
    processor, tokenizer.post_processor = tokenizer.post_processor, Sequence([])
    plain = [tokenizer.encode(text).ids for text in texts]
    tokenizer.post_processor = processor
    for first in range(len(full[0]) - len(plain[0]) + 1):
        prefix, suffix = full[0][:first], full[0][first + len(plain[0]) :]
        if full == [[*prefix, *ids, *suffix] for ids in plain]:
            return Template(tuple(prefix), tuple(suffix))
    raise UsageError(
        f"--tokenizer: its post-processor turns the ids {plain[0]} of 'a' into {full[0]}; only templates that "
        "put tokens before and after a text can be used"
    )
