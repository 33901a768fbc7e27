"""Equal fingerprints give equal shards: everything that determines the bytes is in the fingerprint."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.options.dedup_options import DedupConfig
from beam_pipeline.options.input_options import DatasetConfig, InputConfig, MixItem
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.tokenizer_options import TrainTokenizerConfig
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.runners import launching
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.verbs import checked_run

# Options that specify where things are, how the run goes, or when it fails. The list of inputs stands for `input`, the
# tokenizer's content for `tokenizer`, and `splits` for `split`.
NO_INFLUENCE = {"tokenizer", "split", "output", "max_bad_ratio", "engine", "analyze", "overwrite", "resume"}
NO_INFLUENCE |= {"estimate", "prices", "skip_memory_check", "wait", "dry_run", "track"}
NO_INFLUENCE |= {"chat_template"}  # its content is in the description of the tokenizer
OF_CONVERSATIONS = ("loss_on", "chat_date", "overlong")
NO_INFLUENCE_OF_INPUT = {"input", "seed"}  # the seed is the run's
OTHER = {
    "splits": (("b", 0.5), ("a", 0.5)),
    "mix": (MixItem("a*", 1, 0.5),),
    "dataset": DatasetConfig("name"),
    "input": ("other",),
    "output_format": "parquet",
    "dedup_keep": "longest",
    "track": "otlp",
    "curation": CurationConfig(keep_columns=("url",)),
}


def other_value(name: str, value: object) -> object:
    """Returns another value of an option."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x"


@pytest.fixture(scope="module")
def config(corpus: Path, tokenizer_folder: Path) -> PrepareConfig:
    argv = ["--input", str(corpus), "--tokenizer", str(tokenizer_folder), "--output", "out"]
    return parse(PrepareConfig, [*argv, "--splits", "a=0.5,b=0.5"])[0]


@pytest.mark.parametrize("name", [field.name for field in fields(PrepareConfig) if field.name != "input"])
def test_each_option_is_in_the_identity_or_declared_without_influence(config: PrepareConfig, name: str):
    if name in OF_CONVERSATIONS:
        config = replace(config, input=replace(config.input, content="conversation"))
    if name in ("fim_spm_rate", "fim_tokens"):
        config = replace(config, fim_rate=0.5)
    if name.startswith(("near_", "paragraph_", "dedup_")):
        config = replace(config, dedup="near+paragraphs")
    if name == "ids_column":  # only this format has other names
        config = replace(config, output_format="mds")
    other_config = replace(config, **{name: other_value(name, getattr(config, name))})
    is_same = json.dumps(other_config.identity()) == json.dumps(config.identity())
    assert is_same == (name in NO_INFLUENCE)


@pytest.mark.parametrize("name", [field.name for field in fields(InputConfig)])
def test_each_option_of_the_input_is_in_the_identity_or_declared_without_influence(
    config: PrepareConfig, name: str
):
    other_input = replace(config.input, **{name: other_value(name, getattr(config.input, name))})
    is_same = json.dumps(replace(config, input=other_input).identity()) == json.dumps(config.identity())
    assert is_same == (name in NO_INFLUENCE_OF_INPUT)


@pytest.mark.parametrize("name", [field.name for field in fields(DedupConfig)])
def test_each_option_of_deduplication_is_in_the_identity_if_it_is_used(config: PrepareConfig, name: str):
    def identity(dedup: str, **values: object) -> str:
        return json.dumps(replace(config, dedup=dedup, **values).identity())

    other = {name: other_value(name, getattr(DedupConfig(dedup="none"), name))}
    if name == "dedup":
        assert (
            len({identity(dedup) for dedup in ("none", "exact", "near", "paragraphs", "near+paragraphs")})
            == 5
        )
        return
    part = "paragraphs" if name.startswith("paragraph_") else "near"
    assert identity("near+paragraphs", **other) != identity("near+paragraphs")
    assert identity(part, **other) != identity(part)
    unused = "paragraphs" if name == "dedup_keep" else "exact"
    assert identity(unused, **other) == identity(unused)


def test_of_a_dataset_only_the_cache_has_no_influence():
    dataset = DatasetConfig("name", "config", "split", "revision", "cache")
    identity = InputConfig(dataset=dataset).identity()
    for field in fields(DatasetConfig):
        other_identity = InputConfig(dataset=replace(dataset, **{field.name: "other"})).identity()
        assert (other_identity == identity) == (field.name == "cache")


def test_the_size_of_units_decides_a_tokenizer_only_where_a_tables_size_is_estimated():
    def identities(*source: str) -> list[dict]:
        return [
            parse(TrainTokenizerConfig, [*source, "--output", "tok", "--unit_bytes", size])[0].identity()
            for size in ("1000", "2000")
        ]

    identity, other_identity = identities("--input", "a.txt")
    assert identity == other_identity
    identity, other_identity = identities("--dataset_name", "name")
    assert identity != other_identity


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A corpus of three small files."""
    folder = tmp_path_factory.mktemp("small")
    for number, name in enumerate(("a.txt", "b.txt")):
        (folder / name).write_text("\n\n".join(documents[6 * number :][:6]), encoding="utf-8")
    lines = [
        json.dumps({"text": text, "body": body})
        for text, body in zip(documents[:5], documents[20:25], strict=True)
    ]
    (folder / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def outcome(argv: list[str]) -> tuple[str, tuple]:
    """Returns the fingerprint of a run, and everything that determines its shards: units' outputs and the layout."""
    config, _ = parse(PrepareConfig, argv)
    checked = checked_run.check_run(config, launching.begin("prepare", [], config.output))
    tokenizer, planned = checked.tokenizer, checked.planned
    encoder = DocumentTokenizer(
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        template=checked.template,
        engine=config.engine,
        parse_special_tokens=config.parse_special_tokens,
        control_ids=tokenizer.control_ids,
    )
    packing = {"packing": config.packing, "max_length": config.max_length, "pad_id": checked.pad_id}
    content = []
    for unit in planned.units:
        rows = UnitRows(
            tokenizer=encoder,
            choose_split=SplitChooser(config.splits, config.seed, config.split_by),
            packers=[Packer(**packing, keep_starts=config.segment_ids) for _ in config.splits],
            vocab_size=tokenizer.vocab_size,
            on_bad=lambda record: None,
        )
        blocks = [
            (split, b"".join(block.parts())) for split, block in rows.blocks(read_unit(unit, config.input))
        ]
        content.append(
            (blocks, [tail and (tail.ids.tobytes(), tail.starts.tobytes()) for tail in rows.tails])
        )
    layout = (config.split_names, config.shard_size, config.num_shards, config.shuffle, config.seed)
    features = (config.max_length, config.attention_mask, config.segment_ids)
    return checked.fingerprint(), (content, layout, *features)


VALUES = {
    "--seed": ["0", "1"],
    "--max_length": ["16", "24"],
    "--packing": ["concat", "best_fit", "pad"],
    "--split_by": ["place", "text"],
    "--document": ["line", "paragraph", "file"],
    "--text_key": ["text", "body"],
    "--unit_bytes": ["300", "100000"],
    "--shuffle": ["global", "none"],
    "--engine": ["auto", "hf"],  # the only one here that must not change a byte
}
SPLITS = ["a=0.5,b=0.5", "b=0.5,a=0.5", "a=0.3,b=0.7", "b=0.7,a=0.3"]
FLAGS = ["--segment_ids", "--append_eos", "--parse_special_tokens"]
FILES = st.permutations(["a.txt", "b.txt", "c.jsonl", "*.txt"]).map(lambda names: ("--input", names[:3]))
MIXES = st.permutations(["a.txt*1", "b.txt*2.5", "c.jsonl*0.5"]).map(lambda items: ("--mix", items))


@st.composite
def neighbours(draw) -> tuple[list, list]:
    """The options of two runs, which differ in one or two options, or only in the order of values."""
    options = {name: draw(st.sampled_from(values)) for name, values in VALUES.items()}
    options["--splits"] = draw(st.sampled_from(SPLITS))
    flags, source = set(draw(st.lists(st.sampled_from(FLAGS)))), draw(FILES | MIXES)
    runs = []
    for _ in range(2):
        other_options = dict(options)
        for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=1)):
            other_options[name] = draw(st.sampled_from(VALUES[name]))
        other_options["--splits"] = ",".join(draw(st.permutations(options["--splits"].split(","))))
        runs.append((other_options, flags, (source[0], draw(st.permutations(source[1])))))
    return runs[0], runs[1]


def words(run: tuple, folder: Path, tokenizer_folder: Path) -> list[str]:
    options, flags, (option, items) = run
    paths = [f"{folder}/{item}" for item in items]
    source = [option, *paths] if option == "--input" else [option, ",".join(paths)]
    option_words = [word for pair in options.items() for word in pair]
    return [*source, *option_words, *sorted(flags), "--tokenizer", str(tokenizer_folder), "--output", "out"]


@given(runs=neighbours())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equal_fingerprints_mean_equal_rows_at_equal_places(runs, folder: Path, tokenizer_folder: Path):
    first, second = (outcome(words(run, folder, tokenizer_folder)) for run in runs)
    if first[0] == second[0]:
        assert first[1] == second[1]


@given(runs=neighbours(), engine=st.sampled_from(["auto", "hf"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_order_of_inputs_and_the_engine_change_nothing(runs, engine, folder, tokenizer_folder):
    (options, flags, source), (_, _, permuted) = runs
    expected = outcome(words((options, flags, source), folder, tokenizer_folder))
    assert expected == outcome(
        words(({**options, "--engine": engine}, flags, permuted), folder, tokenizer_folder)
    )


def test_the_order_of_the_splits_changes_the_fingerprint_and_the_shards(folder: Path, tokenizer_folder: Path):
    runs = [({"--splits": splits}, set(), ("--input", ["*.txt"])) for splits in SPLITS[2:]]
    first, second = (outcome(words(run, folder, tokenizer_folder)) for run in runs)
    assert first[0] != second[0] and first[1] != second[1]
