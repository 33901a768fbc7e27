"""The docs' table of tests per model type matches the tests' lists."""

from __future__ import annotations

from pathlib import Path

from tests.tpu_trainer import test_pjrt_hosts
from tests.tpu_trainer.model_types import ALL, DROPOUT, other_configs, small_config
from tests.tpu_trainer.small_runs import fit_arguments
from tests.tpu_trainer.training import test_every_model_type
from tpu_trainer.network.model_types import CONFIG_VALUES, EXPORTABLE
from tpu_trainer.verbs.command_line import parse

DOCS = Path(__file__).parents[3] / "docs" / "how-training-works.md"
HEADER = [
    "| objective | type | exact resume | checkpointing | accumulation | several hosts | export |",
    "|---|---|---|---|---|---|---|",
]


def test_the_docs_table_of_model_types_matches_the_tests() -> None:
    arguments = fit_arguments(Path("dataset"), "run", test_pjrt_hosts.OPTIONS)
    on_several_hosts = parse([str(item) for item in arguments])[1]
    hosts = [(on_several_hosts.objective, on_several_hosts.model.type)]
    lines = [
        f"| {objective} | {model_type} | tested"
        f" | {'refused' if model_type in test_every_model_type.WITHOUT_CHECKPOINTING else 'tested'}"
        f" | tested | {'tested' if (objective, model_type) in hosts else 'not tested'} | tested |"
        for objective, model_type in ALL
    ]
    table_lines = [
        line for line in DOCS.read_text().splitlines() if line.startswith(("| objective", "| mlm", "| clm"))
    ]
    assert table_lines == [HEADER[0], *lines], "\n".join([*HEADER, *lines])


def test_exports_are_compared_for_every_value_that_can_be_set() -> None:
    from transformers import CONFIG_MAPPING

    assert set().union(*EXPORTABLE.values()) == set(CONFIG_VALUES)
    for model_type, names in CONFIG_VALUES.items():
        defaults = CONFIG_MAPPING[model_type]().to_dict()
        compared_names = {
            name
            for config in (small_config(model_type), *other_configs(model_type))
            for name, value in config.items()
            if value != defaults.get(name)
        }
        assert compared_names >= names, (model_type, names - compared_names)
        assert {name for name in names if "dropout" in name or name.endswith("_pdrop")} <= set(DROPOUT)
