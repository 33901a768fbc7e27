"""The inputs and options of `prepare`, read and checked before anything is written."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version

from beam_pipeline import __version__
from beam_pipeline.conversations.chat_format import ChatFormat, chat_format
from beam_pipeline.conversations.rendering import check_templates
from beam_pipeline.curation.filters import check_filters, files_identity
from beam_pipeline.curation.restore import Restored
from beam_pipeline.engines.engine import HF_SPEED, check_engine
from beam_pipeline.engines.infilling import Infilling, infilling_of
from beam_pipeline.engines.unknown_text import describe_unknown
from beam_pipeline.formats.choice import format_class, format_for
from beam_pipeline.native import library as native
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.runners.launching import Launch
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.reading import check_columns, read_unit
from beam_pipeline.steps.keep import check_attributes
from beam_pipeline.support import extras, filesystem, memory
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import TokenizerDescription, describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy
from beam_pipeline.tokenization.template import Template
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from beam_pipeline.verbs.benchmark_index import index_benchmarks
from beam_pipeline.verbs.costs import likely_records, needed_memory
from beam_pipeline.verbs.first_look import check_documents
from beam_pipeline.views.round_trip import RoundTrip
from tokenmill_reader.format.inputs import describe_inputs, encode_inputs
from tokenmill_reader.format.limits import MOST_IDS
from tokenmill_reader.format.manifest import describe_file, fingerprint_of
from tokenmill_reader.format.names import TOKENIZER

# Part of every fingerprint. Raise it with every change to the code that changes the bytes of shards.
_BYTES_VERSION = 2

_LARGE_SHARD = 1 << 28  # tokens: from here on, the size of shards determines the memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """The inputs and options of a run, read and checked before anything is written."""

    config: PrepareConfig
    tokenizer: TokenizerDescription
    template: Template
    pad_id: int
    planned: InputPlan
    chat: ChatFormat | None
    """How the tokenizer writes conversations; None if the documents are texts."""
    infilling: Infilling | None
    """Which texts are cut for infilling; None: none are."""
    lost: RoundTrip | None
    """What the tokenizer loses of a sample of the documents, if anything."""
    ngram_index: bytes | None = None
    """The n-grams of the benchmarks of `--decontaminate`."""

    @cached_property
    def inputs(self) -> bytes:
        """The content of inputs.jsonl."""
        return encode_inputs((file.path, file.size) for file in self.planned.files)

    def describe(self) -> dict:
        """Returns the description of the run for the manifests."""
        tokenizer = self.tokenizer
        files = [describe_file(name, data) for name, data in sorted(tokenizer.files.items())]
        return {
            **({"round_trip": self.lost.to_json()} if self.lost else {}),
            "bytes_version": _BYTES_VERSION,
            "versions": {"tokenmill": __version__, "tokenizers": version("tokenizers")},
            "config": self.config.identity() | files_identity(self.config.curation) | self._benchmarks(),
            "inputs": describe_inputs(
                self.inputs,
                files=len(self.planned.files),
                input_bytes=sum(file.size for file in self.planned.files),
            ),
            "tokenizer": {
                "path": f"../{TOKENIZER}",
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
                "special_token_ids": {**tokenizer.special_token_ids, "pad": self.pad_id},
                "all_special_ids": list(tokenizer.all_special_ids),
                "control_ids": sorted(tokenizer.control_ids),
                **({"chat_template": self.chat.sha256} if self.chat else {}),
                "files": files,
            },
        }

    def _benchmarks(self) -> dict[str, str]:
        """Returns what identifies the content of the benchmarks."""
        if self.ngram_index is None:
            return {}
        return {"decontaminate": hashlib.sha256(self.ngram_index).hexdigest()}

    def fingerprint(self) -> str:
        """See `fingerprint_of`."""
        parts = self.describe()
        return fingerprint_of(*(parts[key] for key in ("bytes_version", "config", "inputs", "tokenizer")))


def check_run(config: PrepareConfig, launch: Launch, planned: InputPlan | None = None) -> CheckedRun:
    """Reads the tokenizer, plans the input and looks at it, unless it is `planned` already.

    Raises:
        UsageError: If they contradict the options, an option needs a package that is not installed, or the run needs
            more memory than is available.
    """
    if config.analyze:
        extras.require("analyze", "--analyze")
    check_filters(config.curation)
    format_class(config.output_format, of_documents=config.packing == "none").check_packages()
    tokenizer = describe_tokenizer(config.tokenizer, config.pad_token, config.chat_template)
    if tokenizer.vocab_size > MOST_IDS:
        raise UsageError(
            f"--tokenizer {config.tokenizer}: has {tokenizer.vocab_size:,} ids, but a dataset can have at most "
            f"{MOST_IDS:,}; use a tokenizer with smaller ids"
        )
    template = tokenizer.template_of(config.append_eos)
    chat = None
    if config.has_targets:
        chat = chat_format(tokenizer, loss_on=config.loss_on, date=config.chat_date)
        check_templates(chat)
    slow_reason = check_engine(
        config.engine,
        tokenizer.json,
        parse_special_tokens=config.parse_special_tokens or chat is not None,
        control_ids=tokenizer.control_ids,
    )
    check_copy(tokenizer, config.tokenizer)
    if slow_reason is not None:
        _log.warning(
            f"--tokenizer {config.tokenizer}: Hugging Face's tokenizers encodes all text, at about {HF_SPEED} per "
            f"core, since no faster engine gives its ids exactly: {slow_reason}"
        )
    unknown_text = describe_unknown(load_tokenizer(tokenizer.json).parsed)
    if unknown_text is not None:
        _log.warning(f"--tokenizer {config.tokenizer}: {unknown_text}")
    if native.rows_library() is None:
        _log.info(
            "records are encoded without compiled code, more slowly: tokenmill was installed without a C compiler"
        )
    pad_id = _pad_id(config, tokenizer)
    for note in tokenizer.notes:
        _log.info(note)
    lost = None
    if planned is None:
        planned = launch.plan(config.input, skip_bad=config.on_bad_record == "skip")
        if chat is None:
            lost = check_documents(replace(config, input=planned.config), planned, tokenizer)
    if config.curation.attributes is not None:
        check_attributes(
            config.curation.attributes,
            planned.units,
            expression=config.curation.keep,
            preferred=config.preferred_attribute,
        )
    config = replace(config, input=planned.config)
    _check_curation(config.curation, planned)
    format_for(config, tokenizer.vocab_size).check_records(likely_records(config, planned.bytes))
    if _joins_silently(config, template):
        eos_hint = (
            "--append_eos ends each with the eos token"
            if tokenizer.special_token_ids["eos"] is not None
            else None
        )
        _log.info(
            "rows join documents with nothing between them, since the tokenizer adds no special tokens; "
            f"{eos_hint or '--segment_ids records the beginning of each'}"
        )
    if launch.runs_here and not (config.skip_memory_check or config.estimate):
        _check_memory(config, planned, tokenizer)
    return CheckedRun(
        config=config,
        tokenizer=tokenizer,
        template=template,
        pad_id=pad_id,
        planned=planned,
        chat=chat,
        infilling=infilling_of(config.identity() | {"seed": config.seed}, tokenizer),
        lost=lost,
        ngram_index=index_benchmarks(config.contamination),
    )


def _pad_id(config: PrepareConfig, tokenizer: TokenizerDescription) -> int:
    """Returns the id that pads rows.

    Raises:
        UsageError: If rows have no attention mask, and the text may contain the pad token.
    """
    special = tokenizer.special_token_ids
    if not config.attention_mask and config.packing != "none":
        pad_id = tokenizer.require("pad", "--no_attention_mask")
        shared = [name for name, token in special.items() if name != "pad" and token == pad_id]
        if shared:
            raise UsageError(
                f"--no_attention_mask: the tokenizer's pad token is also its {shared[0]} token, so padding could not "
                "be distinguished from text; omit the option, or add a separate pad token to the tokenizer"
            )
        return pad_id
    if special["pad"] is not None:
        return special["pad"]
    pad_id = 0 if special["eos"] is None else special["eos"]
    _log.info(
        f"--tokenizer {config.tokenizer}: has no pad token. Rows are padded with the id {pad_id} "
        f"({'eos' if special['eos'] is not None else 'the first'}), and attention_mask marks the padding; --pad_token "
        "selects another token"
    )
    return pad_id


def _check_curation(config: CurationConfig, planned: InputPlan) -> None:
    """Warns of lists and columns of which the input has nothing, since rules would then do nothing without a word."""
    unknown = sorted(set(Restored(config.restore).files) - {file.path for file in planned.files})
    if unknown:
        _log.warning(
            f"--restore: {len(unknown)} of the files that the lists name are not in the input, such as {unknown[0]}; "
            "their documents are not restored. If the input has moved, correct the column path"
        )
    if not config.columns or not planned.units:
        return
    check_columns(planned.units[0], config.columns)
    batch = next(read_unit(planned.units[0], planned.config, columns=config.columns), None)
    for name, values in ({} if batch is None else batch.columns).items():
        if values and all(value is None for value in values):
            _log.warning(
                f"--keep_columns, --record_columns or --url_column {name}: none of the first {len(values)} records has "
                "this key"
            )


def _joins_silently(config: PrepareConfig, template: Template) -> bool:
    """Determines whether rows contain several documents, and nothing in the records marks their boundaries."""
    is_marked = template.prefix or template.suffix or config.segment_ids or config.position_ids
    return config.packing not in ("pad", "none") and not is_marked


def _check_memory(config: PrepareConfig, planned: InputPlan, tokenizer: TokenizerDescription) -> None:
    """Refuses a local run that needs more memory than is available, before anything is written.

    More worker processes do not help, since the runner groups data in the launcher's memory.
    """
    remedies = ["use --runner DataflowRunner"]
    if config.max_length and config.num_shards:
        remedies.insert(0, "use more --num_shards, since all rows of a shard are in memory")
    elif config.max_length and config.shard_size * config.max_length > _LARGE_SHARD:
        remedies.insert(0, "use a smaller --shard_size, since all rows of a shard are in memory")
    if not filesystem.is_local(config.output):
        remedies.append("write to a local folder and copy it")
    dedup = config.dedup
    if dedup != "none":
        remedies.append(f"omit --dedup {dedup}")
    memory.check(
        needed_memory(config, planned.bytes, tokenizer.vocab_size, longest_bytes=planned.longest_known),
        memory.available(),
        remedy=", or ".join(remedies),
    )
