"""Opens models for evaluation: a checkpoint of a run, or an exported folder."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import DataConfig, EvaluateConfig, FitConfig, ModelConfig, ObjectiveName, TrainConfig
from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Devices
from tpu_trainer.devices.executor import StepExecutor, check_batch_size
from tpu_trainer.devices.opening import open_devices
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.exports.exported import open_tokenizer, read_family
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from
from tpu_trainer.exports.saved_tokenizer import save_tokenizer
from tpu_trainer.network.configuration import configure
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.chosen_step import chosen_step
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.step.task import Task
from tpu_trainer.training.build import build_task

_ROWS_OF_A_REPLICA = 8


@dataclass(frozen=True, kw_only=True)
class ScoredModel:
    """A model on its devices, whose steps predict the targets that rows name."""

    executor: StepExecutor
    objective: ObjectiveName
    tokenizer: Any
    """The exported one: it appends nothing to a text of a causal model."""
    vocabulary: Vocabulary
    max_length: int
    """Tokens that the model reads."""
    lengths: tuple[int, ...]
    """The lengths to which rows are padded, ascending to `max_length`: a program is compiled for each."""
    batch_size: int
    step: int | None
    """The step of a run's checkpoint."""
    precision: str

    @property
    def prefix_id(self) -> int | None:
        """The id before a text without context: the begin token's, else the end token's, as in lm-eval."""
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return end if begin is None else begin


def run_executor(
    config: EvaluateConfig,
    run: FitConfig,
    *,
    checkpoints: Checkpoints,
    step: int,
    max_length: int,
    vocabulary: Vocabulary,
    peers: Peers,
    given_targets: bool = False,
) -> StepExecutor:
    """Returns an executor with the weights of the checkpoint of `step`; for `given_targets`, see `build_task`."""
    part = run.optimizer.evaluated
    run = _for_evaluation(run, config)
    devices = open_devices(run, peers)
    task = _build(run, devices, vocabulary, max_length, given_targets=given_targets)
    executor = devices.executor(task, state={"network": task.objective.model.network.weights})
    # Of the average, the checkpoint has the same names in another part.
    names = {name.replace("network/", f"{part}/", 1): name for name in executor.state_shapes()}
    shapes = {saved: executor.state_shapes()[name] for saved, name in names.items()}
    executor.load_state((names[saved], value) for saved, value in checkpoints.read(step, shapes))
    return executor


def _build(
    run: FitConfig, devices: Devices, vocabulary: Vocabulary, max_length: int, *, given_targets: bool
) -> Task:
    with elapsed("evaluate: building the model"), devices.scope():
        return build_task(
            run,
            vocabulary=vocabulary,
            max_length=max_length,
            target=devices.target,
            initial=devices.initial,
            given_targets=given_targets,
        )


def _for_evaluation(run: FitConfig, config: EvaluateConfig) -> FitConfig:
    """Returns the run's configuration for the devices of `config`, without what only training needs."""
    # The kernel is only for training.
    train = replace(
        run.train,
        attention_kernel=False,
        deterministic=False,
        precision=config.precision or run.train.precision,
    )
    # Only the weights to evaluate, not a second set for the average.
    optimizer = replace(run.optimizer, ema=None)
    return replace(run, strategy=config.strategy, mesh=config.mesh, train=train, optimizer=optimizer)


def open_model(config: EvaluateConfig, peers: Peers) -> ScoredModel:
    """Opens the model of --run or --model.

    Raises:
        UsageError: If there is none, or the devices cannot divide it or a batch.
    """
    opened = _open_run(config, peers) if config.model is None else _open_export(config, peers)
    peers.check_same(
        {
            "the step of the checkpoint": opened.step,
            "--batch_size": opened.batch_size,
            "--precision": opened.precision,
        }
        | {f"--mesh.{name}": value for name, value in asdict(config.mesh).items()},
        remedy="start all with the same options and the same model",
    )
    check_batch_size(opened.batch_size, opened.executor.replicas, "batch_size")
    return opened


def _open_run(config: EvaluateConfig, peers: Peers) -> ScoredModel:
    folder = RunFolder(config.run)
    run = folder.config()
    checkpoints = Checkpoints(folder.checkpoints, channel=peers.channel())
    step = chosen_step(checkpoints, config.checkpoint)
    max_length = checkpoints.metadata(step)["max_length"]
    with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
        save_tokenizer(
            folder.tokenizer,
            Path(temporary),
            max_length=max_length,
            token_types=False,
            appends=run.objective == "mlm",
        )
        tokenizer = load_tokenizer(temporary)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, folder.tokenizer, run.objective)
    executor = run_executor(
        config,
        run,
        checkpoints=checkpoints,
        step=step,
        max_length=max_length,
        vocabulary=vocabulary,
        peers=peers,
        given_targets=True,
    )
    return ScoredModel(
        executor=executor,
        objective=run.objective,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        max_length=max_length,
        lengths=_lengths(config, max_length),
        batch_size=config.batch_size or run.train.evaluation_batch_size or run.train.batch_size,
        step=step,
        precision=config.precision or run.train.precision,
    )


def _open_export(config: EvaluateConfig, peers: Peers) -> ScoredModel:
    family = read_family(config.model)
    tokenizer, vocabulary = open_tokenizer(config.model, family.objective)
    model = resolve_init_from(ModelConfig(init_from=config.model))
    configuration = configure(model, objective=family.objective, vocabulary=vocabulary, max_length=1)
    max_length = min(tokenizer.model_max_length, configuration.max_length)
    run = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=family.objective,
        model=model,
        train=TrainConfig(precision=config.precision or "float32"),
        strategy=config.strategy,
        mesh=config.mesh,
    )
    devices = open_devices(run, peers)
    task = _build(run, devices, vocabulary, max_length, given_targets=True)
    network = task.objective.model.network
    load_weights(network, config.model, family=family, vocabulary=vocabulary, initial=devices.initial)
    return ScoredModel(
        executor=devices.executor(task, state={"network": network.weights}),
        objective=family.objective,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        max_length=max_length,
        lengths=_lengths(config, max_length),
        batch_size=config.batch_size or _ROWS_OF_A_REPLICA * devices.replicas,
        step=None,
        precision=run.train.precision,
    )


def _lengths(config: EvaluateConfig, max_length: int) -> tuple[int, ...]:
    """Returns powers of two from 32 on, and `max_length`; only it if a mesh divides rows."""
    if config.mesh.sequence > 1:
        return (max_length,)
    powers = (1 << exponent for exponent in range(5, max_length.bit_length()))
    return (*(length for length in powers if length < max_length), max_length)
