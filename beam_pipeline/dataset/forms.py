"""The forms of the parts of a dataset that only this program reads: the manifest's options, and units.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.options.input_options import NOT_IN_ALL_MANIFESTS, InputConfig, parse_encoding
from beam_pipeline.options.option_fields import Option, options_of
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.routing import ShardLayout
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.json_form import COUNT, NUMBER, Optional, Share, mismatches


def _form_of(option: Option) -> Any:
    """Returns the form of an option's value in the manifest."""
    if option.choices:
        form: Any = re.compile("|".join(map(re.escape, option.choices)))
    elif option.kind is int:
        form = NUMBER if option.bounds is None else range(option.bounds[0], option.bounds[1] + 1)
    else:
        form = option.kind
    return form if option.required or option.default is not None else (form, None)


_OPTIONS = {option.name: option for option in options_of(PrepareConfig) if option.affects_bytes}
# The options on which rereading the dataset, or the command that the report shows, depends.
_CONFIG: dict[str, Any] = {
    name: _form_of(_OPTIONS[name])
    for name in (
        *("document", "text_key", "dedup", "parse_special_tokens", "append_eos", "split_by"),
        *("max_length", "packing", "attention_mask", "segment_ids", "position_ids", "shuffle", "seed"),
        *("shard_size", "num_shards"),
    )
}
_CONFIG["max_length"] = (_form_of(_OPTIONS["max_length"]), None)
_CONFIG |= {name: Optional(_form_of(_OPTIONS[name])) for name in NOT_IN_ALL_MANIFESTS}
_CONFIG["mix"] = Optional([[str, COUNT, Share()]])
_CONFIG["dataset"] = Optional(({"name": str}, None))
_CONFIG["text_separator"] = Optional(str)  # its default is a text that --help describes
_CONFIG |= {name: Optional(_form_of(_OPTIONS[name])) for name in ("loss_on", "overlong")}
_CONFIG |= {name: Optional(_form_of(_OPTIONS[name])) for name in ("fim_rate", "fim_spm_rate")}
_CONFIG["fim_tokens"] = Optional([str])
_CONFIG |= dict.fromkeys(("messages_column", "chat_date"), Optional(str))
_CONFIG["record_columns"] = Optional([str])

UNIT_FORM = {
    "unit": COUNT,
    "format": re.compile("text|jsonl|parquet|arrow"),
    "root": str,
    "parts": [([str, COUNT, COUNT], [str, COUNT, COUNT, COUNT, COUNT])],
    "bytes": COUNT,
    "repeat": COUNT,
    "share": Share(),
    "rows": COUNT,
    "tail": COUNT,
}
"""A line of units.jsonl, except the last."""

TAILS_FORM = {"unit": COUNT, "rows": COUNT}
"""The last line of units.jsonl."""


def config_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks the options on which reading a row depends. `manifest_form` reports a config that is not an object."""
    config = manifest.get("config")
    if not isinstance(config, dict):
        return
    yield from mismatches(config, _CONFIG, "config")
    if not {"max_length", "shard_size", "num_shards"} <= config.keys():
        return
    if config.get("record_columns", []) != manifest.get("record_columns", []):
        yield "record_columns differ from config.record_columns"
    if config["max_length"] != manifest.get("max_length"):
        yield f"config.max_length is {config['max_length']!r:.80}, but max_length is {manifest.get('max_length')!r:.80}"
    try:
        parse_encoding(str(config.get("encoding", InputConfig.encoding)))
    except UsageError as error:
        yield f"config.encoding: {error}"
    if bool(config["shard_size"]) == bool(config["num_shards"]):
        yield "exactly one of config.shard_size and config.num_shards must be set"


def layout_defects(manifest: Mapping[str, Any], layout: ShardLayout) -> Iterator[str]:
    """Checks the number and sizes of the shards, which follow from the layout."""
    records = manifest["shards"].records
    if len(records) != layout.num_shards:
        yield f"it has {len(records)} shards, but {layout.num_rows} records make {layout.num_shards}"
        return
    for number, count in enumerate(records):
        if count != layout.records_in(number):
            yield f"shards[{number}] has {count} records, but must have {layout.records_in(number)}"
