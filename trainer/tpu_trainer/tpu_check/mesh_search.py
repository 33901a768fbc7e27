"""A best-first search for the mesh and the micro-batches with the most tokens per second by the roofline model.

Each candidate has an optimistic figure that needs no compiler. The search compiles the candidate that promises most,
and ends if no other promises more than the best compiled step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.mesh_candidates import (
    Candidate,
    MeshPlan,
    ModelFacts,
    PlanBytes,
    least_seconds,
    micro_batches,
    start,
)

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
    report: dict[str, Any] | None = None
    """The report of the compiled step."""
    limit: float = float("inf")
    """Tokens per second that it is assumed not to exceed, by the micro-batch next to it."""
    status: str = SLOWER
    reason: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        """The speed by the compiled step; None if it does not fit or is unknown."""
        return self.report["roofline"]["tokens_per_second"] if self.report and self.report["fits"] else None

    @property
    def promise(self) -> float:
        """The most tokens per second that it can have, as far as is known before it is compiled."""
        return min(self.bound, self.limit)


Compile = Callable[[Candidate], dict[str, Any]]
"""Returns the report of a candidate; raises RefusedStep."""


@dataclass(kw_only=True)
class MeshSearch:
    """The search. `run` may be interrupted by an exception; its trials until then stay."""

    config: CompileCheckConfig
    facts: ModelFacts
    topology: Topology
    plans: Mapping[MeshPlan, PlanBytes]
    compile: Compile
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
        return [trial for trial in self.trials if not trial.reason and trial.promise > least]

    def _most_promising(self) -> Trial | None:
        return max(self.open(), key=lambda trial: trial.promise, default=None)

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
        """Compiles the step of a trial, and adds the micro-batches next to it."""
        self.compiled += 1
        try:
            trial.report = figures = self.compile(trial.candidate)
        except RefusedStep as error:
            trial.status, trial.reason = REFUSED, str(error)
            return
        if not figures["fits"]:
            trial.status = TOO_LARGE
            excess = (figures["hbm"]["needed"] - figures["hbm"]["available"]) / 1e9
            trial.reason = f"{excess:,.2f} GB too much"
        else:
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
