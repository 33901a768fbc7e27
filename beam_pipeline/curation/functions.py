"""Functions of the user that decide about batches of documents: `--filter module:function`.

    def keep(texts: list[str], columns: dict[str, list]) -> list[bool] | dict[str, list]

A function gets the texts of a batch and the columns of `--keep_columns`. It returns whether to keep each text, or a
dict of lists with a value for each text: `keep`, `texts` (edited), `value` (a number for the list of removed documents)
and any other names, which `annotate` stores. It must decide about each document alone, since batches are arbitrary.

A module that reads files, such as a model, names them in `FILES`, by paths relative to its folder.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from beam_pipeline.curation.decisions import Decided
from beam_pipeline.curation.removals import Removals
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.texts import Texts

_OWN_NAMES = ("keep", "texts", "value")


@dataclass(frozen=True)
class UserFunction:
    """A function of the user. See `decisions.Decision`.

    Args:
        name: `module:function`.
    """

    name: str

    @property
    def rule(self) -> str:
        """The name of the rule in the list of removed documents."""
        return self.name.replace(":", ".")

    @cached_property
    def path(self) -> Path:
        """The module's file. Raises UsageError if there is no such module."""
        module = self.name.partition(":")[0]
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None or not spec.has_location:
            raise UsageError(
                f"--filter {self.name}: there is no module {module!r}; install it, add its folder to PYTHONPATH, or "
                "give workers the package by --setup_file"
            )
        return Path(spec.origin)

    @cached_property
    def module(self) -> ModuleType:
        """The module. Raises UsageError if there is none, or importing it fails."""
        name, path = self.name.partition(":")[0], self.path
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise UsageError(
                f"--filter {self.name}: importing {name} ({path}) fails: {type(error).__name__}: {error}"
            ) from error

    def files(self) -> list[Path]:
        """Returns the module's file, and those that it names in `FILES`.

        Raises:
            UsageError: If one does not exist, or `FILES` is not a list or tuple of paths.
        """
        names = getattr(self.module, "FILES", ())
        if not isinstance(names, list | tuple) or not all(isinstance(name, str | Path) for name in names):
            raise UsageError(
                f"--filter {self.name}: FILES of {self.path} is {names!r:.80}; it must be a tuple of paths"
            )
        paths = [self.path, *(self.path.parent / name for name in names)]
        for path in paths:
            if not path.is_file():
                raise UsageError(
                    f"--filter {self.name}: FILES of {self.path} names {path}, which is not a file"
                )
        return paths

    @cached_property
    def function(self) -> Callable[[list[str], dict[str, list]], Any]:
        """The function. Raises UsageError if the module has none of this name."""
        module, _, name = self.name.partition(":")
        function = getattr(self.module, name, None)
        if not callable(function):
            raise UsageError(f"--filter {self.name}: the module {module} has no function {name!r}")
        return function

    def results(self, batch: DocumentBatch) -> dict[str, Sequence[Any]]:
        """Calls the function.

        Raises:
            DataError: If it does not return a value for each text.
        """
        returned = self.function(list(batch.texts), dict(batch.columns))
        results = dict(returned) if isinstance(returned, Mapping) else {"keep": returned}
        for name, values in results.items():
            if not hasattr(values, "__len__") or isinstance(values, str) or len(values) != len(batch.texts):
                raise DataError(
                    f"--filter {self.name}: returned {values!r:.80} as {name!r} for {len(batch.texts)} texts of "
                    f"{batch.name}; return a list with a value for each text"
                )
        texts = results.get("texts")
        if texts is not None and not all(isinstance(text, str) for text in texts):
            raise DataError(f"--filter {self.name}: returned other things than strings as 'texts'")
        return results

    def attributes(self, batch: DocumentBatch) -> dict[str, Sequence[Any]]:
        """Returns the values that are not decisions, by name."""
        return {name: values for name, values in self.results(batch).items() if name not in _OWN_NAMES}

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        if not batch.texts:
            return Decided()
        results = self.results(batch)
        dropped = np.flatnonzero(~np.asarray(results.get("keep", np.ones(len(batch.texts))), bool))
        values = np.asarray(results.get("value", np.full(len(batch.texts), np.nan)), float)
        removals = Removals.of_rule(self.rule, dropped, values[dropped], [{}] * len(dropped))
        if "texts" not in results:
            return Decided(removals)
        texts = list(results["texts"])
        try:
            Texts.of(texts)
        except UnicodeEncodeError as error:
            raise DataError(
                f"--filter {self.name}: returned a text with half of a surrogate pair for {batch.name}, which is no "
                f"character: {error.object[max(0, error.start - 20) : error.start + 20]!r}; leave it out"
            ) from error
        return Decided(removals, texts)
