"""What a run needs to know of a tokenizer, read from its folder without transformers where that is exact."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import Sequence

from beam_pipeline import filesystem
from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.documents import Template

SPECIAL_NAMES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")

# The classes that take tokenizer.json as it is. Others may rewrite its post-processor or normalizer from their
# config as they load (Llama's add_bos_token, BERT's do_lower_case), so they are loaded by AutoTokenizer once.
_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


@dataclass(frozen=True)
class TokenizerDescription:
    """A tokenizer, resolved once by the launcher.

    Attributes:
      files: the files of its folder by name: what is copied to `OUT/tokenizer`.
      vocab_size: `len(tokenizer)`.
      special_token_ids: the id of each of `SPECIAL_NAMES`, None where it has none.
      all_special_ids: sorted.
      template: what stands around each document.
    """

    files: Mapping[str, bytes] = field(repr=False)
    vocab_size: int
    special_token_ids: Mapping[str, int | None]
    all_special_ids: tuple[int, ...]
    template: Template

    @property
    def json(self) -> str:
        """The text of `tokenizer.json`."""
        return self.files["tokenizer.json"].decode()

    @property
    def sha256(self) -> str:
        """Of `tokenizer.json`, in hex."""
        return hashlib.sha256(self.files["tokenizer.json"]).hexdigest()

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
    """Reads a tokenizer from a folder (local or remote), or through AutoTokenizer by the hub's name.

    Args:
      path: the folder or name.
      pad_token: a token of its vocabulary that is to be its pad token; None: that which it has.

    Raises:
      UsageError: where there is none, or it is none that `tokenizers` can run.
    """
    files = _read_folder(filesystem.absolute(path))
    if not files and Path(path).is_dir():
        raise UsageError(f"--tokenizer {path}: none of a tokenizer's files is in this folder")
    config = _config(files)
    if "tokenizer.json" not in files or config.get("tokenizer_class") not in _PLAIN_CLASSES:
        files = _through_transformers(path, files)
    if pad_token is not None:
        files = _with_pad_token(files, pad_token)
    config = _config(files)
    try:
        tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:  # the library raises plain Exception
        raise UsageError(f"--tokenizer {path}: tokenizer.json cannot be loaded: {error}") from error
    if pad_token is not None and tokenizer.token_to_id(pad_token) is None:
        raise UsageError(f"--pad_token {pad_token}: is not in the vocabulary of --tokenizer {path}")
    special = {name: _token_id(tokenizer, config, name, path) for name in SPECIAL_NAMES}
    return TokenizerDescription(
        files=files,
        # Ids may have gaps: an embedding needs a row for the largest.
        vocab_size=max(tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1) + 1),
        special_token_ids=special,
        all_special_ids=_all_special_ids(tokenizer, special),
        template=find_template(tokenizer),
    )


def _config(files: Mapping[str, bytes]) -> dict:
    """The tokenizer's config; older folders name their special tokens in a file beside it."""
    names = ("special_tokens_map.json", "tokenizer_config.json")
    return {key: value for name in names for key, value in json.loads(files.get(name, b"{}")).items()}


def _with_pad_token(files: Mapping[str, bytes], token: str) -> dict[str, bytes]:
    """The files, with this pad token in those that name the special tokens."""
    changed = {
        name: json.dumps(
            {**json.loads(files[name]), "pad_token": token}, indent=2, ensure_ascii=False
        ).encode()
        for name in ("special_tokens_map.json", "tokenizer_config.json")
        if name in files
    }
    return {**files, **changed}


def _all_special_ids(tokenizer: Tokenizer, named: Mapping[str, int | None]) -> tuple[int, ...]:
    added = (token for token, value in tokenizer.get_added_tokens_decoder().items() if value.special)
    return tuple(sorted({*added, *(token for token in named.values() if token is not None)}))


def _read_folder(path: str) -> dict[str, bytes]:
    """The files a tokenizer's folder holds (weights and the like are left where they are)."""
    known = (".json", ".txt", ".model", ".jinja")
    found = filesystem.match(filesystem.join(path, "*"))
    kept = [(file, size) for file, size in found if file.endswith(known) and size < 256 << 20]
    return {file.rpartition("/")[2]: filesystem.read_bytes(file) for file, _ in kept}


def _through_transformers(path: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        source = path
        if files:
            source = str(Path(folder, "in"))
            for name, data in files.items():
                filesystem.write_bytes(filesystem.join(source, name), data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"--tokenizer {path}: neither a folder with a tokenizer nor one the hub has: {reason}"
            ) from error
        if not tokenizer.is_fast:
            raise UsageError(
                f"--tokenizer {path}: {type(tokenizer).__name__} has no fast version, and without a "
                "tokenizer.json there is nothing that runs at speed; convert it first"
            )
        target = str(Path(folder, "out"))
        tokenizer.save_pretrained(target)
        return _read_folder(target)


def _token_id(tokenizer: Tokenizer, config: Mapping, name: str, path: str) -> int | None:
    token = config.get(f"{name}_token")
    if isinstance(token, dict):
        token = token["content"]
    if token is None:
        return None
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
