"""The plan of a run: tokens, size, loss, time and money, with ranges and the assumptions behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenmill_reader.charts import short
from tpu_trainer.config import PlanConfig
from tpu_trainer.planning.corpus import Corpus
from tpu_trainer.planning.model_cost import ModelCost
from tpu_trainer.planning.prices import DATE, SOURCE, UNCONFIRMED, Accelerator, accelerators
from tpu_trainer.planning.report import Report, read_report
from tpu_trainer.planning.scaling_laws import LAWS, LEAST_PARAMETERS, LEAST_TOKENS, Range, over_laws
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.support.tables import table_lines
from tpu_trainer.tpu_check.step_options import DATA_OPTIONS, step_options


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run takes on an accelerator."""

    accelerator: Accelerator
    hours: tuple[float, float]
    """From the shortest to the longest time."""

    @property
    def dollars(self) -> tuple[float, float]:
        return tuple(each * self.accelerator.count * self.accelerator.dollars for each in self.hours)


class RunPlan:
    """What a run needs and what it can give."""

    def __init__(self, config: PlanConfig, corpus: Corpus, model: ModelCost) -> None:
        """
        Raises:
            UsageError: If the accelerators, their prices or the report of compile-check are not usable.
        """
        self._config = config
        self._corpus = corpus
        self._model = model
        train = config.train
        self.flops = train.rows_before(train.steps) * model.flops_per_row
        report = None if config.report is None else read_report(config.report)
        self._least_hours = _least_hours(config, report, model)
        self._topology = config.topology if report is None else report.topology
        rented = accelerators(self._topology, config.prices, bfloat16=train.precision == "mixed_bfloat16")
        self.costs = {name: self._cost(each) for name, each in rented.items()}

    @property
    def no_law(self) -> str | None:
        """Why the laws say nothing about this run; None if they do."""
        if self._config.objective == "mlm":
            return "the published laws are of causal models"
        if self._config.model.init_from is not None:
            return "the published laws are of models that start with random weights"
        if self._model.has_experts:
            return "the published laws are of dense models"
        if self._model.parameters < LEAST_PARAMETERS or self._corpus.effective < LEAST_TOKENS:
            return (
                f"the published laws are of models of {_count(LEAST_PARAMETERS)} parameters or more, and of "
                f"{_count(LEAST_TOKENS)} tokens or more"
            )
        return None

    def loss(self) -> Range:
        """Returns the loss at the end, in nats per token."""
        corpus, parameters = self._corpus, self._model.parameters
        return over_laws(lambda law: law.run_loss(parameters, corpus.unique, corpus.effective))

    def best_run(self) -> Range:
        """Returns the parameters with the lowest loss for the operations of this run, on this corpus."""
        flops = 6 * self._model.parameters * self._corpus.read
        return over_laws(lambda law: law.best_run(flops, self._corpus.unique))

    def best_size_for_corpus(self) -> Range:
        """Returns the parameters for which the corpus, read once, is the best number of tokens."""
        return over_laws(lambda law: law.best_size_for(self._corpus.unique))

    def to_json(self) -> dict[str, Any]:
        """Returns all figures. Ranges are [value, lowest, highest], times and costs [lowest, highest]."""
        corpus, model = self._corpus, self._model
        document: dict[str, Any] = {
            "corpus": {
                **{"unique_tokens": corpus.unique, "read_tokens": corpus.read},
                **{"effective_tokens": corpus.effective, "margin": corpus.margin},
                "steps_of_an_epoch": self._steps_of_an_epoch(),
            },
            "model": {
                "parameters": model.parameters,
                "tokens_per_parameter": corpus.read / model.parameters,
                "flops": self.flops,
            },
            "costs": {
                name: {"hours": cost.hours, "dollars": cost.dollars, "count": cost.accelerator.count}
                for name, cost in self.costs.items()
            },
            "assumptions": list(self.assumptions()),
        }
        if self.no_law is None:
            document["scaling"] = {
                "loss": self.loss(),
                "best_size_for_these_flops": self.best_run(),
                "best_size_for_the_corpus_read_once": self.best_size_for_corpus(),
            }
        return document

    def lines(self) -> Iterator[str]:
        """Yields the plan as text."""
        corpus, model = self._corpus, self._model
        margin = (
            "" if corpus.margin == 0 else " ± unknown" if corpus.margin is None else f" ± {corpus.margin:.1%}"
        )
        steps = self._steps_of_an_epoch()
        counted = f"{steps:,} step{'s' if steps > 1 else ''}"
        yield (
            f"tokens: {_count(corpus.unique)}{margin} in the corpus; {_count(corpus.read)} to read, "
            f"{corpus.read / corpus.unique:.2f} epochs; {counted} an epoch"
        )
        yield (
            f"model: {model.type} of {model.parameters:,} parameters, "
            f"{corpus.read / model.parameters:,.1f} tokens per parameter"
        )
        yield f"training: {self.flops:.2e} floating-point operations"
        if self.no_law is None:
            yield f"loss at the end: about {_shown(self.loss(), '{:.2f}'.format)} nats per token"
            best = self.best_run()
            tokens = [model.parameters * corpus.read / each for each in best]
            shown = _shown(Range(tokens[0], min(tokens), max(tokens)), _count)
            yield f"best size for these operations: {_shown(best, _count)} parameters, which read {shown} tokens"
            once = self.best_size_for_corpus()
            flops = Range(*(6 * each * corpus.unique for each in once))
            yield (
                f"best size for the corpus, read once: {_shown(once, _count)} parameters, "
                f"{_shown(flops, '{:.1e}'.format)} operations"
            )
        yield ""
        yield from table_lines(
            [("rented", "hours", "dollars"), *(self._cost_cells(*item) for item in self.costs.items())]
        )
        yield ""
        yield "assumptions:"
        for assumption in self.assumptions():
            yield f"- {assumption}"

    def assumptions(self) -> Iterator[str]:
        """Yields what the figures rest on."""
        low, high = self._config.mfu
        if self._corpus.margin is None:
            yield "tokens are estimated from a sample that does not tell how far they may be off"
        elif self._corpus.margin:
            yield "tokens are estimated from a sample of the text; the margin contains 19 of 20 cases"
        yield (
            "operations are those of the model's matrix products, forward and backward (PaLM's appendix B), without "
            "recomputation"
        )
        if self.no_law is None:
            yield (
                f"the loss is that of {LAWS[0].source}; the range is that of {len(LAWS)} published fits, with "
                + " and ".join(law.source for law in LAWS[1:])
            )
            yield "all are of English web text and its tokenizers: another text, such as code, has another loss"
            yield "repeated tokens count less, as do parameters beyond the best size for different ones (2305.16264)"
            yield "operations of the best sizes are 6 × parameters × tokens"
        else:
            yield f"no loss and no best size: {self.no_law}"
        if self._least_hours is not None:
            yield f"the shortest time is compile-check's least step time ({self._config.report})"
            yield f"the longest time is at {low:.0%} of the peak (--mfu)"
        else:
            yield (
                f"times are at {high:.0%} to {low:.0%} of the peak (--mfu); `compile-check --output` has a bound for "
                "the step itself (--report)"
            )
        yield "compilation, evaluation, checkpoints, restarts and waiting for data are not counted"
        rented = {cost.accelerator.kind for cost in self.costs.values()}
        overridden = [kind for kind in self._config.prices if kind in rented]
        changed = f", except {', '.join(overridden)}" if overridden else ""
        yield f"prices: on demand, USA, about {DATE}{changed} (--prices); check them at {SOURCE}"
        for kind in sorted(UNCONFIRMED & rented - set(overridden)):
            yield f"the price of {kind} has no second source: check it above all"

    def _steps_of_an_epoch(self) -> int:
        return max(1, self._config.train.steps_for(round(self._corpus.unique / self._corpus.tokens_per_row)))

    def _cost(self, accelerator: Accelerator) -> Cost:
        low, high = self._config.mfu
        at_peak = self.flops / (accelerator.peak_flops * accelerator.count) / 3600
        shortest = at_peak / high if self._least_hours is None else self._least_hours
        return Cost(accelerator=accelerator, hours=(shortest, max(shortest, at_peak / low)))

    def _cost_cells(self, name: str, cost: Cost) -> tuple[str, str, str]:
        count = cost.accelerator.count
        what = f"one {name}" if self._topology is None else f"{name}, {count}"
        shown = f"{what} at ${cost.accelerator.dollars:.2f}"
        hours, dollars = (
            " to ".join(dict.fromkeys(map(_rounded, each))) for each in (cost.hours, cost.dollars)
        )
        return shown, hours, dollars


def _least_hours(config: PlanConfig, report: Report | None, model: ModelCost) -> float | None:
    """Returns the hours of all steps by the least step time of a report.

    Raises:
        UsageError: If the report is of another step.
    """
    if report is None:
        return None
    if config.topology not in (None, report.topology):
        raise UsageError(
            f"--report is {config.report!r}: of {report.topology}, but --topology is {config.topology}"
        )
    own = step_options(
        config,
        model.rows,
        topology=Topology.parse(report.topology),
        batch_size=config.train.batch_size,
    )
    for name, value in own.items():
        # An estimate does not tell what the rows will have.
        if config.estimate is not None and name in DATA_OPTIONS:
            continue
        if name not in report.step or report.step[name] != value:
            raise UsageError(
                f"--report is {config.report!r}: of another step: {name}: {report.step.get(name)!r} in the report, "
                f"but {value!r} here; check this configuration, or plan the one that was checked"
            )
    return report.seconds * config.train.rows_before(config.train.steps) / config.train.batch_size / 3600


def _shown(values: Range, form: Callable[[float], str]) -> str:
    return f"{form(values.value)} ({form(values.low)} to {form(values.high)})"


def _count(value: float) -> str:
    """Formats tokens and parameters: 1.5e9 → 1.5B."""
    return short(value).replace("G", "B")


def _rounded(value: float) -> str:
    """Formats hours and dollars with two or three digits."""
    if value < 0.01:
        return "under 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
