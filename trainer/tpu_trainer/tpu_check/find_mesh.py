"""The search of `compile-check --find_mesh`: its model, its processes, its progress and what it prints."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import yaml
from tqdm import tqdm

from tokenmill_reader.console.elapsed import ticking
from tokenmill_reader.console.terminal import shows_bars
from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.runs.checkpoint import named_variables
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.cache import open_cache
from tpu_trainer.tpu_check.check import StepCheck
from tpu_trainer.tpu_check.compile_process import CompileProcess
from tpu_trainer.tpu_check.mesh_candidates import Candidate, MeshPlan, ModelFacts, plans
from tpu_trainer.tpu_check.mesh_search import FITS, REFUSED, MeshSearch, Trial

_log = logging.getLogger(__name__)


class MeshFinder:
    """Finds the mesh of a configuration."""

    def __init__(self, config: CompileCheckConfig, *, topology: Topology) -> None:
        """
        Args:
            config: The configuration. Its mesh.data, mesh.model and mesh.fsdp are ignored, its train.accumulation is
                where the search starts.
            topology: The devices, all of which the mesh has.

        Raises:
            UsageError: If the options are inconsistent or no mesh is possible.
        """
        self._config = config
        self._process = CompileProcess(topology)
        facts = _facts(config, topology)
        possible, self.refused = plans(config, facts, topology)
        self._began = time.monotonic()
        self._bar: tqdm | None = None
        self._search = MeshSearch(
            config=config,
            facts=facts,
            topology=topology,
            plans=possible,
            compile=self._compile,
            progress=self._show,
        )
        for plan in self._search.without_rows:
            rule = f"train.batch_size {config.train.batch_size} is not a multiple of {plan.row_groups}"
            self.refused[plan] = rule

    def run(self) -> Trial | None:
        """Searches, and prints what was tried, also if it is interrupted. Returns the best; None if none fits."""
        try:
            with (
                tqdm(desc="compile-check", unit=" steps", disable=not shows_bars()) as self._bar,
                ticking(self._bar),
            ):
                return self._search.run()
        except KeyboardInterrupt:
            best = self._search.best
            result = "no step that fits is compiled yet" if best is None else f"best so far: {best.candidate}"
            _log.info(f"compile-check: interrupted; {result}; the same command continues from the cache")
            raise
        finally:
            self._process.close()
            print(self.table())
            process, minutes = self._process, (time.monotonic() - self._began) / 60
            _log.info(
                f"compile-check: {process.misses} compiled, {process.hits} from "
                f"{open_cache(self._config.cache).folder}; {minutes:,.1f} minutes; {process.largest / 1e9:,.1f} GB of "
                "memory at most in the process that compiles"
            )

    def nothing_fits(self) -> UsageError:
        """Returns the error for a search without a result."""
        sizes = [
            (trial.report["hbm"]["needed"] - trial.report["hbm"]["available"], trial.candidate)
            for trial in self._search.trials
            if trial.report
        ]
        message = f"--find_mesh: no mesh of {self._config.topology} can train this model"
        if sizes:
            excess, candidate = min(sizes, key=lambda pair: pair[0])
            message += f"; the closest, {candidate}, needs {excess / 1e9:,.2f} GB too much on each device"
        elif self._search.trials:
            return UsageError(f"{message}; every step was refused: {self._search.trials[0].reason}")
        else:
            return UsageError(f"{message}, see above. Change the topology, the batch size or the model")
        remedies = ["a larger topology", "shorter rows"]
        if not self._config.find_recompute:
            remedies.insert(0, "--find_recompute")
        return UsageError(f"{message}. Use {', '.join(remedies)} or a smaller model")

    def document(self, best: Trial | None) -> dict[str, Any]:
        """Returns the search as JSON."""
        return {
            "measure": "tokens_per_second",
            "best": None if best is None else best.candidate.options(),
            "tried": [
                {
                    **trial.candidate.options(),
                    "status": trial.status,
                    "reason": trial.reason,
                    "bound_tokens_per_second": trial.bound,
                    "report": trial.report,
                }
                for trial in self._search.trials
            ],
            "refused": [{"mesh": str(plan), "reason": reason} for plan, reason in self.refused.items()],
        }

    def table(self) -> str:
        """Returns a line for each candidate, the best first."""
        lines = [("mesh", "rows × micro-batches", "HBM", "tokens/s at most", "")]
        unfinished = self._search.open()  # if it was interrupted
        for trial in sorted(self._search.trials, key=_rank):
            hbm = f"{trial.report['hbm']['needed'] / 1e9:,.2f} GB" if trial.report else ""
            speed = trial.tokens_per_second
            figure = f"≤ {trial.promise:,.0f}" if speed is None else f"{speed:,.0f}"
            candidate = trial.candidate
            result = "not compiled yet" if trial in unfinished else trial.reason or trial.status
            if trial is self._search.best:
                result = "best so far" if unfinished else "best"
            if trial.status == REFUSED:
                result = f"refused: {result.splitlines()[0]}"
            if trial.status == FITS and trial is not self._search.best:
                result = "not faster"
            lines.append(
                (str(candidate.plan), f"{candidate.rows} × {candidate.accumulation}", hbm, figure, result)
            )
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        text = [
            "  ".join(
                [line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in (1, 2, 3)), line[4]]
            ).rstrip()
            for line in lines
        ]
        reasons: dict[str, list[MeshPlan]] = {}
        for plan, reason in self.refused.items():
            reasons.setdefault(reason, []).append(plan)
        text += [
            f"not possible: {'; '.join(map(str, refused))}: {reason}" for reason, refused in reasons.items()
        ]
        return "\n".join(text)

    def _compile(self, candidate: Candidate) -> dict[str, Any]:
        _log.info(f"compile-check: {candidate}")
        return self._process.report(candidate.configure(self._config))

    def _show(self, search: MeshSearch) -> None:
        waiting = len(search.open())
        seconds = time.monotonic() - self._began
        best = "" if search.best is None else f"best {search.best.tokens_per_second:,.0f} tokens/s"
        if self._bar is not None and not self._bar.disable:
            self._bar.total = search.compiled + waiting
            self._bar.n = search.compiled
            self._bar.set_postfix_str(best)
        elif search.compiled and waiting:
            left = tqdm.format_interval(seconds / search.compiled * waiting)
            _log.info(
                f"compile-check: {search.compiled} steps done, up to {waiting} and {left} left {best}".rstrip()
            )


def options(candidate: Candidate) -> str:
    """Returns the options of a candidate, as YAML and on a command line."""
    values = {"strategy": "pjrt"} | candidate.options()
    line = " ".join(
        f"--{part}.{name} {str(value).lower()}"
        for part, names in candidate.options().items()
        for name, value in names.items()
    )
    return f"{yaml.safe_dump(values, sort_keys=False)}# or: --strategy pjrt {line}"


def _rank(trial: Trial) -> tuple[int, float]:
    return 0 if trial.status == FITS else 1, -(trial.tokens_per_second or 0.0)


def _facts(config: CompileCheckConfig, topology: Topology) -> ModelFacts:
    alone = dataclasses.replace(
        config.mesh.without_processes(), data=1, expert=1, sequence=1, model=1, fsdp=False
    )
    config = dataclasses.replace(config, mesh=alone)
    check = StepCheck(config, topology=topology, cache=open_cache(config.cache))
    return ModelFacts(
        shapes={
            name: tuple(variable.shape.as_list())
            for name, variable in named_variables(check.step.task.state()).items()
        },
        architecture=check.step.task.objective.model.network.architecture,
        max_length=check.rows.max_length,
        row_flops=check.step.model_flops(1),
        activation_bytes=2 if config.train.precision == "mixed_bfloat16" else 4,
    )
