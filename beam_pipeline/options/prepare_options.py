"""The options of `prepare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from beam_pipeline.options.console_options import ConsoleConfig
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.decontaminate_options import DecontaminateConfig
from beam_pipeline.options.dedup_options import DedupConfig
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.option_fields import option
from beam_pipeline.options.option_values import (
    FORMAT_DEFAULTS,
    check_ids_column,
    check_record_columns,
    check_split_name,
    parse_date,
    parse_prices,
    parse_sentinels,
    parse_splits,
    refuse_overwrite_and_resume,
)
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.limits import MOST_RECORDS, MOST_SHARDS, MOST_TOKENS_PER_ROW, SEEDS
from tokenmill_reader.format.names import DOCUMENT_FORMATS, ROW_FORMATS
from tokenmill_reader.tracking import NAMES, names_of

_SHARD_SIZE = 5000
_SHARD_BYTES = 256 << 20
_OPTIONS_OF_ROWS = ("max_length", "segment_ids", "position_ids", "attention_mask")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(DedupConfig):
    """Turns text into sharded files of fixed-length token rows.

    Examples:
        tokenmill prepare --input 'texts/*.txt' --tokenizer roberta-base --output OUT
        tokenmill prepare --input 'texts/*.jsonl.gz' --tokenizer gpt2 --splits train=0.98,validation=0.02 --output OUT
        tokenmill prepare --dataset_name my/dataset --tokenizer tokenizer --packing best_fit --output OUT

    Any other option is passed to Beam, e.g. --runner DataflowRunner. Without --runner, this process runs the
    pipeline.
    """

    verb: ClassVar[str] = "prepare"
    takes_beam_options: ClassVar[bool] = True

    input: InputConfig
    on_bad_record: Literal["fail", "skip"] = option("fail", topic="input")
    """Treatment of records that are not documents, and of documents that the tokenizer cannot encode: fail ends the
    run; skip counts them and writes them to OUT/bad_records."""
    max_bad_ratio: float = option(0.01, metavar="SHARE", bounds=(0, 1), affects_bytes=False)
    """With --on_bad_record skip: the run fails if a larger share of the records is bad."""
    contamination: DecontaminateConfig = option(DecontaminateConfig())

    curation: CurationConfig = option(CurationConfig())

    loss_on: Literal["assistant", "completion", "last_assistant", "all"] = option(
        "assistant", topic="conversations", needs="content"
    )
    """Targets of the loss, which loss_mask marks: all messages of the assistant with the control token after each (or
    what a template with generation tags puts into them); those of the completion, or after the last message of a user;
    the last one; or all tokens."""
    chat_template: str | None = option(
        None,
        metavar="FILE",
        needs="content",
        default_text="the tokenizer's own",
        affects_bytes=False,  # its content does
    )
    """Jinja template that writes a conversation as text, instead of the tokenizer's. OUT/tokenizer gets it."""
    chat_date: str | None = option(
        None, metavar="DATE", needs="content", parse=parse_date, default_text="that is an error"
    )
    """Date for chat templates that write today's, e.g. 2026-07-01."""
    overlong: Literal["error", "drop", "truncate_left", "truncate_right"] = option("error", needs="content")
    """Conversations with more tokens than a row, which are never divided: error makes them bad records; drop leaves
    them out; truncate_left and truncate_right cut off their beginning or end. All are counted."""

    fim_rate: float = option(0.0, topic="infilling", metavar="SHARE", bounds=(0, 1))
    """Share of the documents that are cut in three, at random characters, with the middle moved to the end, so that a
    model learns to fill in code. The seed and a document's place determine the cuts. Rows do not divide such a
    document, and documents that are too long for a row stay whole, unless --packing concat is given."""
    fim_spm_rate: float = option(0.5, metavar="SHARE", bounds=(0, 1), needs="fim_rate")
    """Share of these whose suffix comes before the prefix (SPM), instead of after it (PSM)."""
    fim_tokens: tuple[str, str, str] | None = option(
        None,
        metavar="PREFIX,MIDDLE,SUFFIX",
        parse=parse_sentinels,
        needs="fim_rate",
        default_text="those of the tokenizer, such as <fim_prefix>, if they are known",
    )
    """Special tokens of the tokenizer that mark the parts."""

    tokenizer: str = option(topic="tokenizer", metavar="DIR")
    """Folder of a tokenizer, or its name on the hub."""
    engine: Literal["auto", "hf", "native"] = option("auto", affects_bytes=False)
    """What tokenizes. native gives the same ids as hf, Hugging Face's tokenizers, and is many times faster. auto is
    native where that supports the tokenizer, and otherwise hf."""
    parse_special_tokens: bool = option(
        False,
        default_text="they are ordinary text, which never encodes to a special token other than the unknown token",
    )
    """Special tokens in the text, such as </s>, become the special tokens. Only for text that you trust."""
    append_eos: bool = False
    """End each document with the tokenizer's eos token."""
    pad_token: str | None = option(
        None,
        metavar="TOKEN",
        default_text="the tokenizer's pad token, else its eos token, else the id 0 (attention_mask marks the padding)",
    )
    """Token of the tokenizer's vocabulary that pads rows."""

    max_length: int | None = option(512, topic="rows", metavar="N", bounds=(8, MOST_TOKENS_PER_ROW))
    """Tokens per row."""
    packing: Literal["concat", "best_fit", "pad", "none"] = "concat"
    """concat joins all documents into one stream and cuts it into full rows; best_fit keeps documents whole unless they
    are longer than a row, and is the default for conversations; pad gives each document a row of its own; none keeps
    the documents as they are, in the order of the input, for --output_format megatron or parquet."""
    attention_mask: bool = True
    """Omit attention_mask from the records; only if no row needs padding."""
    segment_ids: bool = False
    """Add segment_ids: for each token, the number of its document in the row."""
    position_ids: bool = False
    """Add position_ids: each token's position in its document."""
    shuffle: Literal["global", "none"] = "global"
    """Order of the rows: global shuffles each split as a whole. With --packing none, always none."""
    seed: int = option(0, metavar="N", bounds=SEEDS)
    """Seed of the shuffle, of the splits, and of the shares of --mix."""

    split: str = option("train", topic="splits", metavar="NAME", exclusive="splits")
    """Name of the only split."""
    splits: tuple[tuple[str, float], ...] = option(
        (), metavar="NAME=SHARE,…", exclusive="splits", parse=parse_splits
    )
    """Several splits, e.g. train=0.98,validation=0.02. A seeded hash of each document's place determines its split."""
    split_by: Literal["place", "text"] = "place"
    """Input of the hash: a document's place or its text. With text, equal documents are in the same split."""

    output: str = option(topic="output", metavar="OUT", affects_bytes=False)
    """Folder for the dataset, local or gs://."""
    output_format: Literal["tfrecord", "arrayrecord", "parquet", "mds", "megatron"] = "tfrecord"
    """Format of the shards: TFRecord files of tf.Example, which tokenmill-trainer and tokenmill-reader read;
    ArrayRecord files of the same records, for Grain and MaxText; parquet files with a list column for each feature;
    MosaicML's MDS files. With --packing none: parquet, or Megatron-LM's pairs of .bin and .idx files."""
    ids_column: str = option("input_ids", metavar="NAME")
    """With --output_format mds: name of the column of token ids. LLM Foundry's StreamingTextDataset reads tokens."""
    shard_size: int | None = option(
        None,
        metavar="N",
        exclusive="shards",
        bounds=(1, MOST_RECORDS),
        default_text=f"{_SHARD_SIZE}, or fewer if rows are so long that a shard would exceed {_SHARD_BYTES >> 20} MiB; "
        "with --packing none, one shard",
    )
    """Records per shard; the last shard may have fewer."""
    num_shards: int | None = option(None, metavar="N", exclusive="shards", bounds=(1, MOST_SHARDS))
    """Shards per split, instead of their size; some may have one record more than others."""
    analyze: bool = option(False, affects_bytes=False)
    """Add OUT/*/transform_fn: tensorflow-transform on the dataset's statistics, as the verb analyze does."""
    overwrite: bool = option(False, affects_bytes=False)
    """Replace the dataset in OUT. Files that were not written by a run are kept."""
    resume: bool = option(False, affects_bytes=False)
    """Continue an earlier run with the same options: keep the parts of the dataset that it finished in OUT."""

    estimate: bool = option(False, topic="running", affects_bytes=False)
    """Write nothing: estimate the run's output, time, memory and cost from a sample of the input (under 1%, or
    8 MiB)."""
    dry_run: bool = option(False, affects_bytes=False)
    """Make no dataset: only list the documents that --decontaminate, --dedup and filters would remove, in
    OUT/removed."""
    prices: tuple[tuple[str, float], ...] = option(
        (),
        metavar="NAME=DOLLARS,…",
        parse=parse_prices,
        needs="estimate",
        affects_bytes=False,
        default_text="the list prices of us-central1",
    )
    """With --estimate: Dataflow's prices of your region, e.g. vcpu_hour=0.056,gb_hour=0.003557,shuffle_gb=0.011."""
    skip_memory_check: bool = option(
        False, topic="running", affects_bytes=False, default_text="that is an error"
    )
    """Run on this machine even if the run seems to need more memory than is available."""
    wait: bool = option(False, affects_bytes=False, default_text="return when the job is submitted")
    """Dataflow: follow the job to its end, show its messages and counters, and cancel it on Ctrl-C or SIGTERM. Other
    runners are always waited for."""
    track: str | None = option(None, metavar="NAME,…", affects_bytes=False)
    """Trackers that get the progress on this machine and the dataset's figures: wandb, mlflow, trackio, otlp. Each is
    an extra of tokenmill-reader."""
    console: ConsoleConfig = option(ConsoleConfig())

    @classmethod
    def complete(cls, given: dict[str, Any]) -> None:
        """See `Options.complete`. Without rows, refuses their options, and sets those to nothing."""
        super().complete(given)
        if given.get("content") == "conversation":
            _complete_conversations(given)
        else:
            for name in ("messages_column", "loss_on", "chat_template", "chat_date", "overlong"):
                if name in given:
                    raise UsageError(
                        f"--{name}: applies to --content conversation only; add that, or omit it"
                    )
        if given.get("fim_rate"):
            if given.get("content") == "conversation":
                raise UsageError(
                    "--fim_rate: does not apply to conversations, which stay as they are; omit it"
                )
            if given.get("parse_special_tokens"):
                raise UsageError(
                    "--fim_rate: text could forge the tokens that mark the parts; omit --parse_special_tokens"
                )
            given.setdefault("packing", "best_fit")
        if given.get("packing") == "none":
            _refuse_options_of_rows(given)
            given |= {"max_length": None, "attention_mask": False, "shuffle": "none"}
        if not given.get("splits"):
            given["splits"] = ((given.get("split", cls.split), 1.0),)
        if given.keys().isdisjoint({"shard_size", "num_shards"}):
            of_rows = given.get("packing") != "none"
            given |= {"shard_size": cls._default_shard_size(given)} if of_rows else {"num_shards": 1}

    def __post_init__(self) -> None:
        refuse_overwrite_and_resume(overwrite=self.overwrite, resume=self.resume)
        others = [name for name in ("overwrite", "resume", "estimate") if getattr(self, name)]
        if self.dry_run and others:
            raise UsageError(
                f"--dry_run with --{others[0]}: a dry run makes no dataset; use "
                "only one of them, and for a dry run an --output of its own"
            )
        if not set(names_of(self.track)) <= set(NAMES):
            raise UsageError(
                f"--track {self.track}: must be some of {', '.join(NAMES)}, with commas between them"
            )
        allowed = DOCUMENT_FORMATS if self.packing == "none" else ROW_FORMATS
        if self.output_format not in allowed:
            raise UsageError(
                f"--output_format {self.output_format} with --packing {self.packing}: use one of {', '.join(allowed)}; "
                "--packing none makes whole documents, any other rows"
            )
        check_ids_column(self.ids_column, self.output_format)
        if self.curation.record_columns:
            self._check_record_columns()
        has_attributes, preferred = self.curation.attributes is not None, self.preferred_attribute
        if has_attributes and self.curation.keep is None and preferred is None:
            raise UsageError(
                "--attributes: has no effect alone; add --keep EXPRESSION or --dedup_keep ATTRIBUTE, or omit it"
            )
        if preferred is not None and not has_attributes:
            raise UsageError(
                f"--dedup_keep {preferred}: is neither first nor longest, and so an attribute, but --attributes "
                "is missing"
            )
        if isinstance(self.splits, str) or not all(
            isinstance(pair, tuple | list) and len(pair) == 2 for pair in self.splits
        ):
            raise UsageError(f"splits={self.splits!r:.80}: must be a tuple of (name, share) pairs")
        for name in self.split_names:
            check_split_name(name)
        if not self.attention_mask and self.packing not in ("concat", "none"):
            raise UsageError(
                f"--no_attention_mask with --packing {self.packing}: rows need padding, and so the mask. Use --packing "
                "concat, where all rows except the last are full, or omit --no_attention_mask"
            )

    def _check_record_columns(self) -> None:
        """Raises UsageError if a record of a dataset is not one document, or has no place for other columns."""
        label = f"--record_columns {','.join(self.curation.record_columns)}"
        if self.packing not in ("pad", "none"):
            raise UsageError(
                f"{label} with --packing {self.packing}: a row may have several documents, with columns of their own; "
                "use --packing pad or none"
            )
        check_record_columns(
            self.curation.record_columns,
            label,
            output_format=self.output_format,
            has_documents=self.packing == "none",
            ids_column=self.ids_column,
        )

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.splits)

    @property
    def has_targets(self) -> bool:
        """Whether some of the tokens are targets of the loss, and others not."""
        return self.input.content == "conversation"

    @property
    def overlaps_units(self) -> bool:
        """Whether a process without Beam tokenizes several units at once: not if Python code takes much of the time."""
        curation = self.curation
        return not (self.has_targets or curation.filter or curation.keep or curation.record_columns)

    @property
    def keep_starts(self) -> bool:
        """Whether rows must record the positions at which documents begin."""
        return self.segment_ids or self.position_ids

    def identity(self) -> dict[str, Any]:
        """See `Options.identity`. The fingerprint contains the tokenizer's content, and `splits` a single split."""
        values = super().identity()
        del values["tokenizer"], values["split"]
        for name, default in FORMAT_DEFAULTS.items():
            if values[name] == default:
                del values[name]
        for name in ("loss_on", "chat_date", "overlong"):
            if not self.has_targets or values[name] is None:
                del values[name]
        for name in ("fim_rate", "fim_spm_rate", "fim_tokens"):
            if not self.fim_rate or values[name] is None:
                del values[name]
        return values

    @classmethod
    def _default_shard_size(cls, given: Mapping[str, Any]) -> int:
        """Returns `_SHARD_SIZE`, or fewer if a shard of so many records might exceed `_SHARD_BYTES`."""
        values = {name: given.get(name, getattr(cls, name)) for name in _OPTIONS_OF_ROWS}
        # Upper estimates: an id has up to three bytes, a position mostly two, a value of a mask or segment one.
        value_bytes = (
            3
            + (given.get("content") == "conversation")
            + values["attention_mask"]
            + values["segment_ids"]
            + 2 * values["position_ids"]
        )
        return max(1, min(_SHARD_SIZE, _SHARD_BYTES // (values["max_length"] * value_bytes)))


def _complete_conversations(given: dict[str, Any]) -> None:
    """Sets the options that follow from `--content conversation`, and refuses those that contradict it."""
    for name, reason in (
        ("parse_special_tokens", "the chat template writes the special tokens"),
        ("append_eos", "the chat template ends a conversation"),
        ("no_attention_mask", "rows need padding"),
    ):
        if given.get(name.removeprefix("no_")) is (not name.startswith("no_")):
            raise UsageError(f"--{name}: does not apply to conversations, since {reason}; omit it")
    packing = given.setdefault("packing", "best_fit")
    if packing not in ("best_fit", "pad"):
        reason = "divides documents" if packing == "concat" else "has no place for the targets of the loss"
        raise UsageError(
            f"--packing {packing}: {reason}; use best_fit or pad for conversations, which keep them whole"
        )
    if given.get("output_format") == "megatron":
        raise UsageError(
            "--output_format megatron: has no place for the targets of the loss; use tfrecord, arrayrecord, parquet or "
            "mds for conversations"
        )
    if given.get("filter"):
        raise UsageError("--filter: its filters are for texts, not for conversations; omit it")
    if given.get("decontaminate_remove") == "passage":
        raise UsageError("--decontaminate_remove passage: conversations stay whole; use document, or omit it")
    given |= {"segment_ids": True, "position_ids": True}


def _refuse_options_of_rows(given: Mapping[str, Any]) -> None:
    for name in _OPTIONS_OF_ROWS:
        if name in given:
            flag = name if name != "attention_mask" else "no_attention_mask"
            raise UsageError(f"--{flag}: does not apply to --packing none, which makes no rows; omit it")
    if given.get("shuffle", "none") != "none":
        raise UsageError(
            "--shuffle global: --packing none keeps the order of the input; omit it, since programs like Megatron-LM "
            "shuffle documents themselves"
        )
