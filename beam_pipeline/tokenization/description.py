"""Description of a tokenizer for a run, read from its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from tokenizers import Tokenizer

from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.chat_templates import chat_templates, with_chat_template
from beam_pipeline.tokenization.control_tokens import find_control_ids
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP, dump_json, parse_json
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.tokenization.template import Template, find_template
from beam_pipeline.tokenization.tokenizer_config import additional_tokens, content
from beam_pipeline.tokenization.tokenizer_files import load_files
from beam_pipeline.tokenization.tokenizer_json import dump_with_model, load_tokenizer
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.format.names import SPECIAL_NAMES

# In characters: messages may quote the tokenizer's files.
MAX_MESSAGE = 1000

# The tokens that mark a document's boundaries or replace its words.
_BOUNDARY_NAMES = ("mask", "bos", "eos", "cls", "sep")


@dataclass(frozen=True)
class TokenizerDescription:
    """A tokenizer, resolved once by the launcher."""

    files: Mapping[str, bytes] = field(repr=False)
    """The content of the folder's files by name. They are copied to `OUT/tokenizer`."""
    notes: tuple[str, ...]
    """Messages for the user about how the tokenizer was read."""
    vocab_size: int
    """`len(tokenizer)`."""
    special_token_ids: Mapping[str, int | None]
    """The id of each of `SPECIAL_NAMES`, None if the tokenizer has no such token."""
    all_special_ids: tuple[int, ...]
    """Sorted."""
    control_ids: frozenset[int]
    """The ids that no text may encode to. See `control_tokens`."""
    template: Template
    """The ids around each document."""

    @property
    def json(self) -> str:
        """The content of `tokenizer.json`."""
        return self.files[JSON].decode()

    @property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json`, in hex."""
        return hashlib.sha256(self.files[JSON]).hexdigest()

    @property
    def chat_templates(self) -> dict[str, str]:
        """The tokenizer's chat templates by name, the only one as `default`. Empty if it has none."""
        return chat_templates(self.files)

    def template_of(self, append_eos: bool) -> Template:
        """Returns the ids around each document. With `append_eos`, exactly one eos token ends the document.

        Raises:
            UsageError: If the tokenizer has no eos token to append.
        """
        if not append_eos:
            return self.template
        eos = self.require("eos", "--append_eos")
        prefix, suffix = self.template.prefix, self.template.suffix
        return Template(prefix, suffix if suffix[-1:] == (eos,) else (*suffix, eos))

    def require(self, name: str, purpose: str) -> int:
        """Returns the id of a special token.

        Raises:
            UsageError: If the tokenizer has no such token.
        """
        token = self.special_token_ids[name]
        if token is None:
            raise UsageError(
                f"--tokenizer: has no {name} token, which {purpose} needs; add one with "
                f"tokenizer.add_special_tokens({{'{name}_token': …}}) and save the tokenizer again"
            )
        return token


def describe_tokenizer(
    path: str, pad_token: str | None = None, chat_template: str | None = None
) -> TokenizerDescription:
    """Reads a tokenizer from a local or remote folder, or from the hub by its name.

    Args:
        path: The folder or name.
        pad_token: A token of the vocabulary to use as the pad token. None keeps the tokenizer's own.
        chat_template: The path of a chat template to use. None keeps the tokenizer's own.

    Raises:
        UsageError: If there is no tokenizer, or `tokenizers` cannot run it deterministically.
    """
    try:
        with library_errors():
            return _describe(path, pad_token, chat_template)
    except EncodingError as error:
        raise UsageError(f"--tokenizer {path}: cannot be loaded, or cannot encode a word: {error}") from error
    except UsageError as error:  # it may quote the tokenizer's files
        raise UsageError(excerpt(str(error), MAX_MESSAGE)) from error


def _describe(path: str, pad_token: str | None, chat_template: str | None) -> TokenizerDescription:
    files, notes = load_files(path)
    if chat_template is not None:
        files = with_chat_template(files, chat_template, path)
    if pad_token is not None:
        files = _with_pad_token(files, pad_token, path)
    loaded = load_tokenizer(files[JSON].decode())
    tokenizer, parsed = loaded.tokenizer, loaded.parsed
    if parsed["model"].get("dropout"):
        raise UsageError(
            f"--tokenizer {path}: its model drops merges at random (dropout {parsed['model']['dropout']}), so every "
            'run would give a different dataset; set "dropout" to null in its tokenizer.json'
        )
    config = _config(files, parsed, path)
    special = {name: _token_id(tokenizer, config, name, path) for name in SPECIAL_NAMES}
    additional = set(map(tokenizer.token_to_id, additional_tokens(config))) - {None}
    boundaries = {special[name] for name in _BOUNDARY_NAMES} - {None}
    marked = {token["id"] for token in parsed["added_tokens"] if token["special"]}
    control = find_control_ids(parsed, boundaries, additional | ({special["pad"]} - {None}))
    ids = set(tokenizer.get_vocab().values())
    # Ids may have gaps, and an embedding needs a row for the largest id.
    vocab_size = max(tokenizer.get_vocab_size(), max(ids, default=-1) + 1)
    unused = [number for number in range(vocab_size) if number not in ids]
    if unused:
        shown = ", ".join(map(str, unused[:3])) + (", …" if len(unused) > 3 else "")
        notes.append(
            f"--tokenizer {path}: {counted(len(unused), 'id')} of its {vocab_size:,} ({shown}) have no token"
        )
    template = find_template(loaded)
    beyond = [number for number in (*template.prefix, *template.suffix) if number >= vocab_size]
    if beyond:
        raise UsageError(
            f"--tokenizer {path}: its post-processor adds the id {beyond[0]}, and its {vocab_size:,} ids are smaller; "
            "correct post_processor in its tokenizer.json"
        )
    return TokenizerDescription(
        files=files,
        notes=tuple(excerpt(note, MAX_MESSAGE) for note in notes),
        vocab_size=vocab_size,
        special_token_ids=special,
        all_special_ids=tuple(sorted(marked | additional | (set(special.values()) - {None}))),
        control_ids=control,
        template=template,
    )


def _config(files: Mapping[str, bytes], parsed: Mapping, path: str) -> dict:
    """Returns the tokenizer's config. Older folders name their special tokens in a separate file."""
    config, names = parse_json(files, CONFIG, path), parse_json(files, MAP, path)
    if "added_tokens_decoder" in config:
        names = {}
    padding = {"pad_token": parsed["padding"]["pad_token"]} if parsed["padding"] else {}
    return {**padding, **config, **names}


def _with_pad_token(files: Mapping[str, bytes], token: str, path: str) -> dict[str, bytes]:
    """Returns the files with this pad token in those that name the special tokens.

    If it was an ordinary token, it becomes an added one, since AutoTokenizer makes every pad token an added token.
    """
    loaded = load_tokenizer(files[JSON].decode())
    number = loaded.tokenizer.token_to_id(token)
    if number is None:
        raise UsageError(f"--pad_token {token}: is not in the vocabulary of --tokenizer {path}")
    changed = {
        name: dump_json({**json.loads(files[name]), "pad_token": token})
        for name in (MAP, CONFIG)
        if name in files
    }
    if all(entry["id"] != number for entry in loaded.parsed["added_tokens"]):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        entry = {"id": number, "content": token, **flags, "special": True}
        added = sorted([*loaded.parts["added_tokens"], entry], key=itemgetter("id"))
        changed[JSON] = dump_with_model({**loaded.parts, "added_tokens": added}, files[JSON])
    return {**files, **changed}


def _token_id(tokenizer: Tokenizer, config: Mapping, name: str, path: str) -> int | None:
    token = config.get(f"{name}_token")
    if not token:
        return None
    token = content(token)
    number = tokenizer.token_to_id(token)
    if number is None:
        raise UsageError(f"--tokenizer {path}: its {name}_token '{excerpt(token)}' is not in its vocabulary")
    return number
