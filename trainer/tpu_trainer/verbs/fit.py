"""The fit verb: checks options, data and output folder, then trains or continues a run."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, is_dataclass, replace

from tokenmill_reader import Mixture
from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer import __version__
from tpu_trainer.config import FitConfig
from tpu_trainer.data.choices import ChoiceRows, Item, read_items
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import check_same_data, check_same_rows, open_data
from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary, load_vocabulary, tokenizer_folder
from tpu_trainer.devices.opening import met_processes
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.exports.initial_weights import resolve_init_from
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.run_lock import FolderLock, held
from tpu_trainer.runs.time_spent import TimeSpent
from tpu_trainer.runs.tracked import check_trackers
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError
from tpu_trainer.support.extras import require_gcp

_log = logging.getLogger(__name__)


def main(config: FitConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If options, data and output folder are inconsistent. `train_run` has further exceptions.
    """
    if not config.output_dir:
        raise UsageError("--output_dir is '': name a folder; a variable of the shell may be unset")
    time_spent = TimeSpent()
    check_trackers(config)
    config = replace(config, model=resolve_init_from(config.model))
    from tpu_trainer.network.configuration import check_model  # imports transformers, but not TensorFlow

    check_model(config.model, config.objective)
    with met_processes(config, run={"--output_dir": config.output_dir}) as peers:
        _fit(replace(config, mesh=config.mesh.without_processes()), peers, time_spent)


def _fit(config: FitConfig, peers: Peers, time_spent: TimeSpent) -> None:
    folder = RunFolder(config.output_dir, writable=peers.is_first)
    earlier = folder.check_continues(config)
    if earlier is not None and earlier.train.steps != config.train.steps:
        _report_steps(earlier.train.steps, config)
    if config.hub_model_id is not None:
        from tpu_trainer.exports.hub import HubPusher, check_model_id  # half a second to import

        check_model_id(config.hub_model_id)
    train = open_data(config)
    found = [split.fingerprint.partition("/")[0] for split in train.datasets]
    if config.data.fingerprint is not None and found != [config.data.fingerprint]:
        raise UsageError(
            f"--data.fingerprint is {config.data.fingerprint!r}, but {train.path} has {', '.join(found)!r}: "
            "use the data with that fingerprint"
        )
    validation = {name: open_split(path) for name, path in config.data.validation_folders.items()}
    for split in validation.values():
        check_same_rows(train.datasets[0], split)
    items = {name: read_items(path) for name, path in config.data.choices_files.items()}
    summary = folder.summary()
    found = {
        "the data": train.fingerprint,
        **{
            f"the validation data{f' {name}' if len(validation) > 1 else ''}": split.fingerprint
            for name, split in validation.items()
        },
        "the items of --data.choices": {
            name: zlib.crc32(repr(each).encode()) for name, each in items.items()
        },
        "the last step of a finished run in --output_dir": None if summary is None else summary["steps"],
        "tokenmill-trainer": __version__,
    }
    peers.check_same(
        _options(config) | found,
        remedy="start all with the same options, data and releases, and --output_dir on a shared disk or in a bucket",
    )
    if summary is not None:
        check_same_data(config, train, step=summary["steps"], trained=summary["data"])
        if summary["steps"] >= config.train.steps:
            _log.info(f"fit: {folder.path}: already finished, with {summary['steps']} steps; nothing to do")
            if config.hub_model_id is not None and folder.writable:
                HubPusher(config.hub_model_id, private=config.hub_private, folder=folder).finish(
                    summary["steps"]
                )
            return
    from tpu_trainer.network.configuration import configure

    vocabulary = load_vocabulary(train.datasets[0], config.objective, tokenizer=config.data.tokenizer)
    configure(config.model, objective=config.objective, vocabulary=vocabulary, max_length=train.max_length)
    with _locked(folder.path) if folder.writable else nullcontext():
        folder.check_continues(config)  # again: another `fit` may have written there meanwhile
        # TensorFlow takes seconds to import: the checks above come first.
        with elapsed("fit: starting TensorFlow"):
            from tpu_trainer.training.train import train_run

        train_run(
            config,
            folder=folder,
            train=train,
            validation=validation,
            choices=_choice_rows(config, items, train, vocabulary) if items else {},
            vocabulary=vocabulary,
            peers=peers,
            time_spent=time_spent,
        )


def _choice_rows(
    config: FitConfig, items: Mapping[str, Sequence[Item]], train: Mixture, vocabulary: Vocabulary
) -> dict[str, ChoiceRows]:
    tokenizer = load_tokenizer(tokenizer_folder(train.datasets[0], config.data.tokenizer))
    return {
        name: ChoiceRows(
            each,
            path=config.data.choices_files[name],
            encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            prefix=vocabulary.eos_id if vocabulary.bos_id is None else vocabulary.bos_id,
            max_length=train.max_length,
            features=train.features,
        )
        for name, each in items.items()
    }


def _locked(folder: str) -> AbstractContextManager[None]:
    """Returns a context that holds the lock of a run's folder."""
    if folder.startswith("gs://"):
        require_gcp(folder)
        from tpu_trainer.cloud.objects import Objects  # half a second to import
        from tpu_trainer.cloud.run_lease import RunLease

        return held(RunLease(folder, Objects()))
    path = folder.removeprefix("file://")
    if files.is_url(path):
        _log.warning(f"fit: {folder}: not locked there; no other `fit` may train in this folder")
        return nullcontext()
    return held(FolderLock(path))


def _report_steps(earlier: int, config: FitConfig) -> None:
    """Prints that a run continues with another number of steps, and what that changes."""
    message = f"fit: --train.steps was {earlier:,} and is {config.train.steps:,}"
    if config.schedule.depends_on_steps:
        message += (
            f": the learning rate continues with the {config.schedule.name} schedule of a run of "
            f"{config.train.steps:,} steps, which differs from that of the steps until now"
        )
    _log.warning(message)


def _options(config: FitConfig) -> dict[str, object]:
    """Returns --name → value."""
    found: dict[str, object] = {}
    for name, value in asdict(config).items():
        if is_dataclass(getattr(config, name)):
            found |= {f"--{name}.{key}": item for key, item in value.items()}
        else:
            found[f"--{name}"] = value
    return found
