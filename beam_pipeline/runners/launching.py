"""The steps of each verb that runs a pipeline over a corpus: options → plan → fingerprint → claim → progress → run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from beam_pipeline.dataset import lock, output_folder, output_place
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.options.dataset_options import ConvertConfig
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.runners import one_process
from beam_pipeline.sources.plan import InputPlan, describe_plan, plan
from beam_pipeline.support import filesystem, memory, pipelines
from beam_pipeline.support.errors import LockLost, StillRunning
from beam_pipeline.support.progress import Address, ProgressDisplay

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipeline.dataset.lock_holder import CloudJob

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """A verb that is about to run a pipeline; `begin` creates it."""

    verb: str
    options: PipelineOptions | None
    """Beam's options, checked, and completed for Dataflow. None if this process runs the pipeline without Beam."""
    output: str
    """The folder that the verb writes, absolute."""

    @property
    def on_dataflow(self) -> bool:
        return self.options is not None and _beam_options().runs_on_dataflow(self.options)

    @property
    def runs_here(self) -> bool:
        """Whether no runner is specified, so that the pipeline runs on this machine."""
        return self.options is None or _beam_options().runs_here(self.options)

    @property
    def sees_local_files(self) -> bool:
        """Whether the workers can read this machine's files."""
        return self.options is None or _beam_options().workers_see_local_files(self.options)

    @property
    def threads(self) -> int:
        """How many threads a process that runs the steps may use."""
        if self.options is None:
            return len(os.sched_getaffinity(0))
        return _beam_options().process_threads(self.options)

    @property
    def units_at_once(self) -> int:
        """How many units a process may tokenize at the same time. Beam's runners give it one after the other."""
        return memory.units_at_once(self.threads) if self.options is None else 1

    def plan(self, config: InputConfig, *, skip_bad: bool) -> InputPlan:
        """Plans the input for the workers of this launch, and shows the user what is read.

        Raises:
            UsageError: If the input does not exist, or the workers cannot read it.
        """
        if config.dataset and config.dataset.cache:
            output_place.check_place(filesystem.absolute(config.dataset.cache), "--dataset_cache")
        input_plan = plan(config, local_files=self.sees_local_files, skip_bad=skip_bad)
        _log.info(describe_plan(input_plan))
        return input_plan

    def hold(self, folder: str, fingerprint: str) -> contextlib.AbstractContextManager[lock.Lock]:
        """Holds the lock in a staging folder. See `lock.hold`."""
        job_runs = partial(_is_active, self.options)
        return lock.hold(folder, verb=self.verb, fingerprint=fingerprint, job_runs=job_runs)

    @contextlib.contextmanager
    def claim(
        self,
        config: PrepareConfig | ConvertConfig,
        splits: Sequence[str],
        fingerprint: str,
        *,
        num_units: int = 0,
    ) -> Iterator[lock.Lock | None]:
        """Claims the output for a dataset: holds its lock, deletes what the run replaces, and cleans up if the block
        fails. An error is only logged if the dataset is finished nevertheless.

        Args:
            config: Has the options `overwrite` and `resume`.
            splits: The names of the splits.
            fingerprint: The dataset's fingerprint.
            num_units: The number of work units.

        Yields:
            The lock. None if the output already contains the dataset, finished, and is kept.
        """
        if config.resume and output_folder.is_finished(self.output, splits, fingerprint):
            yield None
            return
        with self.hold(filesystem.join(self.output, STAGING), fingerprint) as held_lock:
            if output_folder.claim(
                self.output, splits, fingerprint, overwrite=config.overwrite, resume=config.resume
            ):
                yield None
                return
            try:
                yield held_lock
            except StillRunning:
                raise
            except KeyboardInterrupt as interrupt:
                if held_lock.holder.job:
                    interrupt.args = (f"{held_lock.holder.job} may still be active: see `follow`",)
                else:
                    interrupt.args = ("run the same command with --resume to continue",)
                raise
            except Exception as error:
                if not self._clean_up(held_lock, splits, num_units):
                    raise
                _log.warning("the job failed after it had finished the dataset: %s", error)

    @contextlib.contextmanager
    def progress(
        self,
        stages: list[tuple[str, str, float]],
        total: int,
        *,
        observe: Callable[[dict[str, float]], None] | None = None,
    ) -> Iterator[Address | None]:
        """Shows the progress of a local run.

        Args:
            stages: See `ProgressDisplay`.
            total: The total of the first stage.
            observe: See `ProgressDisplay`.

        Yields:
            The address that workers report to. None if another runner, with a display of its own, runs the pipeline.
        """
        if not self.runs_here:
            yield None
            return
        with ProgressDisplay(stages, total, observe=observe) as display:
            yield display.address

    def run(
        self,
        build: Callable[[pipelines.Pipeline], None],
        *,
        held_lock: lock.Lock,
        wait: bool = True,
        describe_finished: Callable[[], str] | None = None,
    ) -> bool:
        """Runs a pipeline that writes the output. See `run.run`."""
        if self.options is None:
            one_process.run(build)
            return True
        from beam_pipeline.runners import run

        return run.run(build, self.options, lock=held_lock, wait=wait, describe_finished=describe_finished)

    def _clean_up(self, held_lock: lock.Lock, splits: Sequence[str], num_units: int) -> bool:
        """Cleans up after a failed run. Logs a cleanup failure without masking the original error.

        Returns:
            Whether the run has finished the dataset nevertheless.
        """
        try:
            held_lock.check()
            finished_counts = output_folder.clean_up_failed_run(
                self.output, splits, held_lock.holder.fingerprint
            )
        except LockLost:
            return False  # the files may belong to another run
        except OSError as error:
            _log.warning("cannot clean up after the failed run: %s", error)
            return False
        if finished_counts is None:
            return True
        units, shards = finished_counts
        if units or shards:
            finished_units = f"{units} of {num_units} work units and " if num_units else ""
            _log.info(f"{finished_units}{shards} shards are finished; --resume keeps them")
        return False


def begin(verb: str, beam_args: Sequence[str], output: str) -> Launch:
    """Checks Beam's options, and makes the file systems use them.

    Args:
        verb: The verb.
        beam_args: The part of the command line that the verb does not know.
        output: The folder that the verb writes, as the user gave it.

    Raises:
        UsageError: If the options of a Dataflow job are wrong, or the folder is inside of a dataset.
    """
    options = None
    if pipelines.IS_BEAM:
        options = _beam_options().parse(beam_args)
        filesystem.configure(options)
    elif beam_args:
        raise AssertionError(f"Beam must be imported before the steps, because of {beam_args}")
    launch = Launch(verb, options, filesystem.absolute(output))
    if launch.on_dataflow:
        from beam_pipeline.runners.dataflow import job_options

        job_options.complete(options, verb=verb, output=launch.output)
    output_place.check_place(launch.output)
    return launch


def _beam_options() -> ModuleType:
    # Imported late: Beam takes a second, and a run without its options does not need it.
    from beam_pipeline.runners import beam_options

    return beam_options


def _is_active(options: PipelineOptions | None, job: CloudJob) -> bool:
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipeline.runners.dataflow.launch import is_active

    return is_active(PipelineOptions([]) if options is None else options, job)
