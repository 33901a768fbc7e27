"""The command line of the pipeline's verbs → one frozen dataclass each. Imports nothing heavy: `--help` is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from beam_pipeline.errors import UsageError
from beam_pipeline.input_options import InputConfig, add_input_options, input_config

PACKINGS = ("concat", "best_fit", "pad")
SHARD_SIZE = 5000
_SHARD_BYTES = 256 << 20
ENGINES = ("auto", "hf", "gigatoken", "tokie")
TOKENIZER_MODELS = ("unigram", "bpe", "wordpiece")

_RESERVED = ("tokenizer", "bad_records", "report.html")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class PrepareConfig:
    """The options of `prepare`. See the options of the same names for each field.

    Attributes:
      splits: (name, share) pairs in the order given; the shares add up to 1.
    """

    input: InputConfig
    tokenizer: str
    output: str
    splits: tuple[tuple[str, float], ...]
    split_by: str
    dedup: str
    on_bad_record: str
    max_bad_ratio: float
    max_length: int
    packing: str
    shard_size: int | None
    num_shards: int | None
    shuffle: str
    seed: int
    engine: str
    parse_special_tokens: bool
    append_eos: bool
    pad_token: str | None
    attention_mask: bool
    segment_ids: bool
    position_ids: bool
    analyze: bool
    overwrite: bool
    resume: bool
    skip_memory_check: bool
    wait: bool

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.splits)

    def identity(self) -> dict:
        """The options that decide the dataset's bytes, for the manifest and the fingerprint."""
        return {
            **self.input.identity(),
            "unit_bytes": self.input.unit_bytes,
            "splits": [list(pair) for pair in self.splits],  # a list: their order decides, too
            "split_by": self.split_by,
            "dedup": self.dedup,
            "on_bad_record": self.on_bad_record,
            "max_length": self.max_length,
            "packing": self.packing,
            "shard_size": self.shard_size,
            "num_shards": self.num_shards,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "parse_special_tokens": self.parse_special_tokens,
            "append_eos": self.append_eos,
            "pad_token": self.pad_token,
            "attention_mask": self.attention_mask,
            "segment_ids": self.segment_ids,
            "position_ids": self.position_ids,
        }


@dataclass(frozen=True)
class TrainTokenizerConfig:
    """The options of `train-tokenizer`. See the options of the same names for each field."""

    input: InputConfig
    on_bad_record: str
    output: str
    model: str
    lowercase: bool
    vocab_size: int
    allow_smaller_vocab: bool
    sample_bytes: int
    seed: int
    push_to_hub: str | None
    overwrite: bool
    resume: bool

    def identity(self) -> dict:
        """The options that decide the tokenizer's bytes."""
        return {
            **self.input.identity(),
            # A table's size is estimated from its units', and the sample's share from the corpus's size.
            **({"unit_bytes": self.input.unit_bytes} if self.input.dataset else {}),
            "on_bad_record": self.on_bad_record,
            "model": self.model,
            "lowercase": self.lowercase,
            "vocab_size": self.vocab_size,
            "allow_smaller_vocab": self.allow_smaller_vocab,
            "sample_bytes": self.sample_bytes,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class InspectConfig:
    """The options of `inspect`. See the options of the same names for each field.

    Attributes:
      record: (split, shard, record); None where none was asked for.
    """

    dataset: str
    record: tuple[str, int, int] | None
    tokens: bool
    trace: str
    grep: str | None
    regex: bool
    ignore_case: bool
    most: int


@dataclass(frozen=True)
class FollowConfig:
    """The options of `follow`. See the options of the same names for each field."""

    job: str
    cancel_on_signal: bool


def prepare_parser() -> argparse.ArgumentParser:
    """The options of `prepare`, but for Beam's."""
    parser = _parser("prepare", "Turns text into sharded TFRecords of fixed-length token rows.")
    add_input_options(parser)
    parser.add_argument(
        "--tokenizer", required=True, metavar="DIR", help="tokenizer: a folder or a name on the hub"
    )
    parser.add_argument(
        "--output", required=True, metavar="OUT", help="folder for the dataset, local or gs://"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--split", default="train", help="name of the only split (default: train)")
    group.add_argument(
        "--splits",
        metavar="NAME=SHARE,…",
        help="several splits, e.g. train=0.98,validation=0.02; a seeded hash of each document's place decides",
    )
    add = parser.add_argument
    add(
        "--split_by",
        choices=("place", "text"),
        default="place",
        help="what the splits' hash is of: each document's place, or its text, so that equal documents never stand "
        "in two splits (default: place)",
    )
    add(
        "--dedup",
        choices=("none", "exact"),
        default="none",
        help="exact: of documents with the same text only the first is kept (default: none)",
    )
    add(
        "--on_bad_record",
        choices=("fail", "skip"),
        default="fail",
        help="skip: records that are no documents are counted and written to OUT/bad_records (default: fail)",
    )
    add(
        "--max_bad_ratio",
        type=float,
        default=0.01,
        help="with --on_bad_record skip: the run fails where a larger share of the records is bad (default: 0.01)",
    )
    add("--max_length", type=int, default=512, help="tokens in a row (default: 512)")
    add(
        "--packing",
        choices=PACKINGS,
        default="concat",
        help="concat: all documents as one stream, cut into full rows; best_fit: documents stay whole unless longer "
        "than a row; pad: a document a row (default: concat)",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--shard_size",
        type=int,
        help=f"records in every shard but the last (default: {SHARD_SIZE}, fewer if rows are so long that a shard "
        f"would exceed {_SHARD_BYTES >> 20} MiB)",
    )
    sizes.add_argument(
        "--num_shards",
        type=int,
        help="shards of each split, instead of their size; some may hold one record more than others",
    )
    add("--shuffle", choices=("global", "none"), default="global", help="order of the rows (default: global)")
    add("--seed", type=int, default=0, help="decides the shuffle and the splits (default: 0)")
    add(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="what tokenizes; the ids are always those of hf, the others are faster, and auto is the fastest that can "
        "do the tokenizer (default: auto)",
    )
    add(
        "--parse_special_tokens",
        action="store_true",
        help="special tokens that stand in the text, such as </s>, become the special tokens; only for text you trust "
        "(default: they are text like any other, and no text encodes to a special token, but the unknown one)",
    )
    add("--append_eos", action="store_true", help="end each document with the tokenizer's eos token")
    add(
        "--pad_token",
        metavar="TOKEN",
        help="the token of the tokenizer's vocabulary that pads (default: its pad token; if it has none, its "
        "eos token, else the id 0: attention_mask tells padding from text)",
    )
    add(
        "--no_attention_mask",
        action="store_true",
        help="leave attention_mask out; only if no row needs padding",
    )
    add(
        "--segment_ids",
        action="store_true",
        help="add segment_ids: which of the row's documents a token is of",
    )
    add("--position_ids", action="store_true", help="add position_ids: each token's position in its document")
    add(
        "--analyze",
        action="store_true",
        help="add OUT/*/transform_fn: tensorflow-transform over the dataset's statistics (as the verb analyze does)",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace the dataset that OUT holds; files that no run has written are kept",
    )
    add(
        "--resume", action="store_true", help="keep what an earlier run with the same options finished in OUT"
    )
    add(
        "--skip_memory_check",
        action="store_true",
        help="run here even if more memory seems to be needed than there is (default: that is an error)",
    )
    add(
        "--wait",
        action="store_true",
        help="Dataflow: follow the job to its end, with its messages and counters, and cancel it on Ctrl-C or SIGTERM; "
        "without, the verb ends when the job is submitted (other runners are always waited for)",
    )
    return parser


def parse_prepare(argv: Sequence[str]) -> tuple[PrepareConfig, list[str]]:
    """The config of `prepare`, and the options that are Beam's.

    Raises:
      UsageError: where values do not fit together.
    """
    args, beam = prepare_parser().parse_known_args(argv)
    if args.shard_size is None and args.num_shards is None:
        args.shard_size = _default_shard_size(args)
    _check(args, ("shard_size", "num_shards"))
    if not 8 <= args.max_length <= 1 << 20:
        raise UsageError(f"--max_length {args.max_length}: must be from 8 to {1 << 20}")
    if not 0 <= args.max_bad_ratio <= 1:
        raise UsageError(f"--max_bad_ratio {args.max_bad_ratio:g}: a share from 0 to 1")
    if args.no_attention_mask and args.packing != "concat":
        raise UsageError(
            f"--no_attention_mask with --packing {args.packing}: its rows need padding, and so the mask; "
            "with --packing concat all rows are full but the last"
        )
    if args.overwrite and args.resume:
        raise UsageError("--overwrite and --resume contradict each other: give one of them")
    config = PrepareConfig(
        input=input_config(args, split=args.split),
        tokenizer=args.tokenizer,
        output=args.output,
        splits=_splits(args.splits) if args.splits else ((_split_name(args.split), 1.0),),
        split_by=args.split_by,
        dedup=args.dedup,
        on_bad_record=args.on_bad_record,
        max_bad_ratio=args.max_bad_ratio,
        max_length=args.max_length,
        packing=args.packing,
        shard_size=args.shard_size,
        num_shards=args.num_shards,
        shuffle=args.shuffle,
        seed=args.seed,
        engine=args.engine,
        parse_special_tokens=args.parse_special_tokens,
        append_eos=args.append_eos,
        pad_token=args.pad_token,
        attention_mask=not args.no_attention_mask,
        segment_ids=args.segment_ids,
        position_ids=args.position_ids,
        analyze=args.analyze,
        overwrite=args.overwrite,
        resume=args.resume,
        skip_memory_check=args.skip_memory_check,
        wait=args.wait,
    )
    return config, beam


def parse_train_tokenizer(argv: Sequence[str]) -> tuple[TrainTokenizerConfig, list[str]]:
    """The config of `train-tokenizer`, and the options that are Beam's.

    Raises:
      UsageError: where values do not fit together.
    """
    parser = _parser("train-tokenizer", "Trains a tokenizer on a seeded sample of a corpus.")
    add_input_options(parser)
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="folder for the tokenizer; AutoTokenizer loads it")
    add(
        "--model",
        choices=TOKENIZER_MODELS,
        default="unigram",
        help="kind of tokenizer: unigram and wordpiece for masked models, bpe (byte-level) for causal ones "
        "(default: unigram)",
    )
    add(
        "--lowercase",
        action="store_true",
        help="wordpiece: fold case and accents, as BERT's uncased models do",
    )
    add("--vocab_size", type=int, default=25000, help="tokens, special ones included (default: 25000)")
    add(
        "--allow_smaller_vocab",
        action="store_true",
        help="make a smaller vocabulary where the sample does not support as many tokens; else that is an error",
    )
    add(
        "--sample_bytes",
        type=int,
        default=100 << 20,
        help="about how many bytes of documents to train on, a seeded sample of all (default: 100 MiB)",
    )
    add(
        "--on_bad_record",
        choices=("fail", "skip"),
        default="fail",
        help="skip: records that are no documents are passed over (default: fail)",
    )
    add("--seed", type=int, default=0, help="decides the sample (default: 0)")
    add("--push_to_hub", metavar="REPO", help="commit the tokenizer to this model repository on the hub, too")
    add("--overwrite", action="store_true", help="replace the tokenizer that DIR holds")
    add(
        "--resume",
        action="store_true",
        help="keep what DIR holds if it was made from this input and these options",
    )
    args, beam = parser.parse_known_args(argv)
    _check(args, ("sample_bytes",))
    if not 300 <= args.vocab_size <= 1 << 20:
        raise UsageError(f"--vocab_size {args.vocab_size}: must be from 300 to {1 << 20}")
    if args.lowercase and args.model != "wordpiece":
        raise UsageError(f"--lowercase: goes with --model wordpiece; a {args.model} tokenizer keeps case")
    if args.overwrite and args.resume:
        raise UsageError("--overwrite and --resume contradict each other: give one of them")
    config = TrainTokenizerConfig(
        input=input_config(args),
        on_bad_record=args.on_bad_record,
        output=args.output,
        model=args.model,
        lowercase=args.lowercase,
        vocab_size=args.vocab_size,
        allow_smaller_vocab=args.allow_smaller_vocab,
        sample_bytes=args.sample_bytes,
        seed=args.seed,
        push_to_hub=args.push_to_hub,
        overwrite=args.overwrite,
        resume=args.resume,
    )
    return config, beam


def parse_follow(argv: Sequence[str]) -> tuple[FollowConfig, list[str]]:
    """The config of `follow`, and the options that are Beam's."""
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline follow",
        description="Follows a Dataflow job to its end: its state, messages and counters; why it failed, if it did.",
        epilog="Any other option is Beam's, e.g. --impersonate_service_account.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("job", metavar="JOB_ID", help="the job's id, such as 2026-01-31_01_02_03-1234567890")
    add("--project", required=True, help="the job's project")
    add("--region", required=True, help="the job's region, e.g. europe-west4")
    add(
        "--cancel_on_signal",
        action="store_true",
        help="cancel the job on Ctrl-C or SIGTERM (default: leave it)",
    )
    args, beam = parser.parse_known_args(argv)
    config = FollowConfig(job=args.job, cancel_on_signal=args.cancel_on_signal)
    return config, [*beam, "--project", args.project, "--region", args.region]


def parse_verify(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The dataset that `verify` is to check, and the options that are Beam's."""
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline verify",
        description="Checks that every split of a dataset is whole.",
        epilog="With any of Beam's options, e.g. --runner DataflowRunner, a Beam pipeline reads the shards; without, "
        "this machine does.",
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="OUT", help="the dataset's folder, or the folder of one split")
    args, beam = parser.parse_known_args(argv)
    return args.dataset, beam


def parse_inspect(argv: Sequence[str]) -> InspectConfig:
    """The config of `inspect`.

    Raises:
      UsageError: where values do not fit together.
    """
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline inspect",
        description="Shows what a dataset holds: in sum, one record with its origin, or the records with some text.",
    )
    add = parser.add_argument
    add("dataset", metavar="OUT", help="the dataset's folder, or the folder of one split")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--record", metavar="SPLIT:SHARD:RECORD", help="decode this record (train:17:42) and name its source"
    )
    asked.add_argument("--grep", metavar="TEXT", help="find the records whose decoded text holds TEXT")
    add("--tokens", action="store_true", help="with --record: show every token, with its position and id")
    add(
        "--trace",
        choices=("auto", "always", "never"),
        default="auto",
        help="with --record: read the source again to name the very documents; auto does where that takes seconds "
        "(default: auto)",
    )
    add("--regex", action="store_true", help="with --grep: TEXT is a regular expression (Python's re)")
    add("--ignore_case", action="store_true", help="with --grep: upper and lower case are the same")
    add("--most", type=int, default=20, metavar="N", help="with --grep: stop after N records (default: 20)")
    args = parser.parse_args(argv)
    for name, needs in (("tokens", "record"), ("regex", "grep"), ("ignore_case", "grep")):
        if getattr(args, name) and getattr(args, needs) is None:
            raise UsageError(f"--{name} goes with --{needs}, which is not given")
    if args.most < 1:
        raise UsageError(f"--most {args.most}: must be at least 1")
    record = None
    if args.record is not None:
        match = re.fullmatch(r"([^:]+):(\d+):(\d+)", args.record)
        if not match:
            raise UsageError(f"--record {args.record}: not SPLIT:SHARD:RECORD, such as train:17:42")
        record = (match[1], int(match[2]), int(match[3]))
    if args.grep is not None:
        try:
            re.compile(args.grep if args.regex else "")
        except re.error as error:
            raise UsageError(f"--grep {args.grep!r} is no regular expression: {error}") from error
        if not args.grep:
            raise UsageError("--grep: the text to look for is empty")
    return InspectConfig(
        dataset=args.dataset,
        record=record,
        tokens=args.tokens,
        trace=args.trace,
        grep=args.grep,
        regex=args.regex,
        ignore_case=args.ignore_case,
        most=args.most,
    )


def parse_analyze(argv: Sequence[str]) -> str:
    """The dataset that `analyze` is to look at."""
    return _dataset(
        argv, "analyze", "Runs tensorflow-transform over a dataset's statistics: OUT/*/transform_fn."
    )


def parse_report(argv: Sequence[str]) -> str:
    """The dataset that `report` is to describe."""
    return _dataset(
        argv, "report", "Writes OUT/report.html, a page with a dataset's figures and some of its rows."
    )


def _dataset(argv: Sequence[str], verb: str, description: str) -> str:
    parser = argparse.ArgumentParser(prog=f"python -m beam_pipeline {verb}", description=description)
    parser.add_argument("dataset", metavar="OUT", help="the dataset's folder, or the folder of one split")
    return parser.parse_args(argv).dataset


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m beam_pipeline {verb}",
        description=description,
        epilog="Any other option is Beam's, e.g. --runner DataflowRunner; without --runner it runs in this process.",
        allow_abbrev=False,
    )


def _check(args: argparse.Namespace, at_least_one: Sequence[str]) -> None:
    for name in at_least_one:
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)}: must be at least 1")


def _default_shard_size(args: argparse.Namespace) -> int:
    """Records in a shard: `SHARD_SIZE` unless their size, estimated from above, exceeds the bound."""
    # An id takes up to three bytes, a position mostly two, a mask's or a segment's value one.
    value_bytes = 3 + (not args.no_attention_mask) + args.segment_ids + 2 * args.position_ids
    return max(1, min(SHARD_SIZE, _SHARD_BYTES // (args.max_length * value_bytes)))


def _split_name(name: str) -> str:
    if not _SPLIT_NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"split {name!r}: a name is made of letters, digits, '_' and '.', and is none of {', '.join(_RESERVED)}"
        )
    return name


def _splits(text: str) -> tuple[tuple[str, float], ...]:
    splits: dict[str, float] = {}
    for item in text.split(","):
        name, separator, share = item.partition("=")
        try:
            value = float(share) if separator else -1.0
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise UsageError(f"--splits {text}: {item!r} is not NAME=SHARE with a share above 0 and up to 1")
        if _split_name(name) in splits:
            raise UsageError(f"--splits {text}: {name!r} is named twice")
        splits[name] = value
    bounds = list(accumulate(splits.values()))
    if any(bound >= 1 for bound in bounds[:-1]):
        raise UsageError(
            f"--splits {text}: the shares of the others leave nothing for {name!r}, the last split"
        )
    total = bounds[-1]
    if abs(total - 1) > 1e-9:
        raise UsageError(
            f"--splits {text}: the shares add up to {total:g}, not 1; a document must go somewhere"
        )
    return tuple(splits.items())
