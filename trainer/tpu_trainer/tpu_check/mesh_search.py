"""A best-first search for the mesh and the micro-batches with the most tokens per second by the roofline model.

Each candidate has an optimistic figure, which the search makes more exact in steps, always for the candidate that
promises most: a bound that needs no compiler; an estimate from the figures of models with one and with two layers; the
figures of the whole compiled step. The search ends if no other candidate promises more than the best compiled step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.figures import roofline
from tpu_trainer.tpu_check.mesh_candidates import (
    Candidate,
    MeshPlan,
    ModelFacts,
    PlanBytes,
    least_seconds,
    micro_batches,
    start,
)

ESTIMATE_LAYERS = (1, 2)
"""The numbers of layers that are compiled for an estimate."""
_LEAST_LAYERS = 4
"""Smaller models are compiled at once."""
_ESTIMATE_ERROR = 0.03
"""How much faster, relative to the others, than its estimate a step can be."""
_MEMORY_ERROR = 0.15
"""An estimate of more memory than available by this share means that the step does not fit."""
_NEIGHBOUR_GAIN = 1.6
"""The most by which the next larger or smaller micro-batch can be faster. GPT-2 small on v5e:2x4 gains 1.5 (estimated)
from 6 to 4 rows, of which more stays in on-chip memory."""

FITS, TOO_LARGE, SLOWER, REFUSED = "fits", "does not fit", "cannot be faster", "refused"


class RefusedStep(Exception):
    """The step cannot be compiled. The message is the reason."""


@dataclass(kw_only=True, eq=False)
class Trial:
    """A candidate and its figures."""

    candidate: Candidate
    bound: float
    """Tokens per second that it cannot exceed."""
    estimate: dict[str, Any] | None = None
    """The estimated report."""
    report: dict[str, Any] | None = None
    """The report of the compiled step."""
    limit: float = float("inf")
    """Tokens per second that it is assumed not to exceed, by the micro-batch next to it."""
    status: str = SLOWER
    reason: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        """The speed by the compiled step or the estimate; None if it does not fit or is unknown."""
        figures = self.report or self.estimate
        return figures["roofline"]["tokens_per_second"] if figures and figures["fits"] else None


Compile = Callable[[Candidate, int | None], dict[str, Any]]
"""Returns the report of a candidate with the given number of layers, None: all; raises RefusedStep."""


@dataclass(kw_only=True)
class MeshSearch:
    """The search. `run` may be interrupted by an exception; its trials until then stay."""

    config: CompileCheckConfig
    facts: ModelFacts
    topology: Topology
    plans: Mapping[MeshPlan, PlanBytes]
    compile: Compile
    estimates: bool = True
    """Whether models of fewer layers can be compiled."""
    progress: Callable[[MeshSearch], None] = lambda search: None
    """Called after each change."""
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    compiled: int = 0
    """Calls of `compile` so far."""

    def __post_init__(self) -> None:
        self._candidates = {plan: micro_batches(plan, self.config) for plan in self.plans}
        self._trials: dict[tuple[MeshPlan, int], Trial] = {}
        self.without_rows = [plan for plan, candidates in self._candidates.items() if not candidates]
        """Plans whose groups cannot have equal numbers of rows."""
        for plan, candidates in self._candidates.items():
            if candidates:
                self._add(plan, start(candidates, self.config))

    def run(self) -> Trial | None:
        """Returns the best trial; None if no candidate fits."""
        self.progress(self)
        while (trial := self._most_promising()) is not None:
            self._advance(trial)
            self.progress(self)
        return self.best

    def open(self) -> list[Trial]:
        """Returns the trials that can become the best."""
        least = 0.0 if self.best is None else self.best.tokens_per_second
        return [trial for trial in self.trials if not trial.reason and self._promise(trial) > least]

    def _most_promising(self) -> Trial | None:
        return max(self.open(), key=self._promise, default=None)

    def _promise(self, trial: Trial) -> float:
        """Returns the tokens per second that an unfinished trial can have."""
        if trial.estimate is None:
            return min(trial.bound, trial.limit)
        compared = [each for each in self.trials if each.estimate and each.report and each.report["fits"]]
        ratios = [
            each.tokens_per_second / each.estimate["roofline"]["tokens_per_second"] for each in compared
        ] or [1.0]
        estimated = trial.estimate["roofline"]["tokens_per_second"]
        return min(trial.bound, estimated * max(ratios) * (1 + _ESTIMATE_ERROR))

    def _add(self, plan: MeshPlan, index: int, limit: float = float("inf")) -> None:
        if (plan, index) in self._trials or not 0 <= index < len(self._candidates[plan]):
            return
        candidate = self._candidates[plan][index]
        seconds = max(least_seconds(candidate, self.plans[plan], self.facts, self.topology).values())
        tokens = candidate.batch_size * self.facts.max_length
        trial = Trial(candidate=candidate, bound=tokens / seconds, limit=limit)
        self._trials[plan, index] = trial
        self.trials.append(trial)

    def _advance(self, trial: Trial) -> None:
        """Makes the figure of a trial more exact, and adds the micro-batches next to it."""
        try:
            if self.estimates and self.facts.layers >= _LEAST_LAYERS and trial.estimate is None:
                trial.estimate = self._estimate(trial.candidate)
                figures = trial.estimate
            else:
                trial.report = figures = self._compile(trial.candidate, None)
        except RefusedStep as error:
            trial.status, trial.reason = REFUSED, str(error)
            return
        if not figures["fits"]:
            trial.status = TOO_LARGE
            excess = (figures["hbm"]["needed"] - figures["hbm"]["available"]) / 1e9
            trial.reason = f"{excess:,.2f} GB too much" + ("" if trial.report else ", by estimate")
        elif trial.report is not None:
            trial.status, trial.reason = FITS, "compiled"
            if self.best is None or trial.tokens_per_second > self.best.tokens_per_second:
                self.best = trial
        self._add_neighbours(trial, figures)

    def _add_neighbours(self, trial: Trial, figures: dict[str, Any]) -> None:
        plan = trial.candidate.plan
        index = self._candidates[plan].index(trial.candidate)
        if not figures["fits"]:
            self._add(plan, index - 1)
            return
        value = figures["roofline"]["tokens_per_second"]
        for step in (-1, 1):
            other = self._trials.get((plan, index - step))
            if other is None or (other.tokens_per_second or 0.0) <= value:
                self._add(plan, index + step, value * _NEIGHBOUR_GAIN)

    def _compile(self, candidate: Candidate, layers: int | None) -> dict[str, Any]:
        self.compiled += 1
        return self.compile(candidate, layers)

    def _estimate(self, candidate: Candidate) -> dict[str, Any]:
        first_layers, second_layers = ESTIMATE_LAYERS
        first = self._compile(candidate, first_layers)
        if not first["fits"]:
            return first
        second = self._compile(candidate, second_layers)
        return extrapolate(first, second, steps=self.facts.layers - first_layers, topology=self.topology)


def extrapolate(
    first: dict[str, Any], second: dict[str, Any], *, steps: int, topology: Topology
) -> dict[str, Any]:
    """Returns the part of a report that follows, if each layer adds as much as the second report has more.

    Args:
        first: The report of a model with few layers, which fits.
        second: That of a model with one layer more.
        steps: Layers more than in the first report.
        topology: The devices.
    """

    def continued(read: Callable[[dict[str, Any]], float]) -> float:
        return read(first) + steps * max(0.0, read(second) - read(first))

    available = first["hbm"]["available"]
    needed = continued(lambda report: report["hbm"]["needed"])
    report = {
        "fits": needed <= available * (1 + _MEMORY_ERROR),
        "hbm": {"needed": needed, "available": available},
    }
    if not second["fits"]:
        return report | {"fits": False}
    line = roofline(
        topology,
        flops=continued(lambda report: report["flops"]),
        hbm_traffic=continued(lambda report: report["hbm_traffic"]),
        sent=continued(lambda report: sum(each["sent"] for each in report["collectives"])),
        model_flops=continued(lambda report: report["roofline"]["model_flops"]),
        tokens=first["replica_rows"] * first["max_length"] * first["replicas"],
    )
    return report | {"roofline": line}
