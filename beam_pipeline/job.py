"""What every worker knows of a run: small, frozen and picklable, made once by the launcher."""

from __future__ import annotations

from dataclasses import dataclass

from beam_pipeline import filesystem
from beam_pipeline.dataset.records import feature_names
from beam_pipeline.input_options import InputConfig
from beam_pipeline.options import PrepareConfig
from beam_pipeline.progress import Address
from beam_pipeline.tokenization.documents import Template

STAGING = "_staging"
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Job:
    """A run of `prepare`, with everything resolved and checked.

    Attributes:
      config: the options.
      output: the dataset's folder, absolute.
      fingerprint: of config, inputs and tokenizer: the same fingerprint, the same shards.
      num_units: how many work units the plan has.
      input_bytes: the size of all input files.
      vocab_size, pad_id: of the tokenizer.
      control_ids: the tokenizer's ids that no text may encode to, unless the options allow it.
      template: what stands around each document.
      engine_threads: how many threads an engine uses: the output never depends on it.
      progress: where workers report to, in local runs.
    """

    config: PrepareConfig
    output: str
    fingerprint: str
    num_units: int
    input_bytes: int
    vocab_size: int
    pad_id: int
    control_ids: frozenset[int]
    template: Template
    engine_threads: int
    progress: Address | None

    @property
    def staging(self) -> str:
        """The folder for everything that is gone when the dataset is finished."""
        return filesystem.join(self.output, STAGING)

    @property
    def plan_path(self) -> str:
        """The work units, a JSON line each."""
        return filesystem.join(self.staging, "plan.jsonl")

    @property
    def finished_folder(self) -> str:
        """A file for each shard that is finished: what `--resume` goes by."""
        return filesystem.join(self.staging, "finished")

    @property
    def description_path(self) -> str:
        """What the manifests say of the inputs and the tokenizer, ready to be copied into them."""
        return filesystem.join(self.staging, "run.json")

    @property
    def tokenizer_json_path(self) -> str:
        return filesystem.join(self.output, TOKENIZER, "tokenizer.json")

    @property
    def features(self) -> tuple[str, ...]:
        """The records' features, sorted."""
        return feature_names(
            attention_mask=self.config.attention_mask,
            segment_ids=self.config.segment_ids,
            position_ids=self.config.position_ids,
        )

    @property
    def keep_starts(self) -> bool:
        """Whether rows must record where documents begin."""
        return self.config.segment_ids or self.config.position_ids

    @property
    def read_options(self) -> InputConfig:
        return self.config.input

    def split_folder(self, split: int) -> str:
        return filesystem.join(self.output, self.config.split_names[split])
