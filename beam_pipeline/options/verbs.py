"""The pipeline's verbs, each with the frozen dataclass of its options.

Nothing heavy is imported here, so that `--help` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from beam_pipeline.options.annotate_options import AnnotateConfig
from beam_pipeline.options.console_options import ConsoleConfig
from beam_pipeline.options.dataset_options import (
    AnalyzeConfig,
    BrowseConfig,
    ConvertConfig,
    InspectConfig,
    ReportConfig,
    VerifyConfig,
)
from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.options.tokenizer_options import TrainTokenizerConfig


@dataclass(frozen=True, kw_only=True)
class FollowConfig(Options):
    """Follows a Dataflow job to its end: its state, messages and counters, and the reason if it fails.

    Any other option is passed to Beam, e.g. --impersonate_service_account.
    """

    verb: ClassVar[str] = "follow"
    takes_beam_options: ClassVar[bool] = True

    job: str = option(positional=True, metavar="JOB_ID")
    """Id of the job, such as 2026-01-31_01_02_03-1234567890."""
    project: str = option()
    """Project of the job."""
    region: str = option()
    """Region of the job, e.g. europe-west4."""
    cancel_on_signal: bool = option(False, default_text="leave it running")
    """Cancel the job on Ctrl-C or SIGTERM."""
    console: ConsoleConfig = option(ConsoleConfig())


@dataclass(frozen=True, kw_only=True)
class CompletionConfig(Options):
    """Prints a script that completes the commands of tokenmill in a shell.

    Examples:
        tokenmill completion bash > ~/.local/share/bash-completion/completions/tokenmill
        tokenmill completion zsh > ~/.zfunc/_tokenmill
        tokenmill completion fish > ~/.config/fish/completions/tokenmill.fish
    """

    verb: ClassVar[str] = "completion"

    shell: Literal["bash", "zsh", "fish"] = option(positional=True, metavar="SHELL")
    """The shell: bash, zsh or fish."""


VERBS: dict[str, type[Options]] = {
    config.verb: config
    for config in (
        TrainTokenizerConfig,
        AnnotateConfig,
        PrepareConfig,
        ConvertConfig,
        VerifyConfig,
        InspectConfig,
        BrowseConfig,
        AnalyzeConfig,
        FollowConfig,
        ReportConfig,
        CompletionConfig,
    )
}
