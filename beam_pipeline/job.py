"""What every worker knows of a run: small, frozen and picklable, made once by the launcher."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from beam_pipeline import filesystem
from beam_pipeline.dataset import lock
from beam_pipeline.dataset.lock_holder import check_held
from beam_pipeline.dataset.manifest import TOKENIZER, describe_file
from beam_pipeline.dataset.records import feature_names
from beam_pipeline.dataset.staging import FINISHED, STAGING, TEMPORARY, WRITTEN, staging_folder
from beam_pipeline.input_options import InputConfig
from beam_pipeline.options import PrepareConfig
from beam_pipeline.progress import Address
from beam_pipeline.tokenization.documents import Template


@dataclass(frozen=True)
class Job:
    """A run of `prepare`, with everything resolved and checked.

    Attributes:
      config: the options.
      output: the dataset's folder, absolute.
      run: the id that the output folder's lock must have.
      detached: whether the launcher does not wait for the run's end, so that the run itself gives up the lock.
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
    run: str
    detached: bool
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
        """See `staging_folder`."""
        return staging_folder(self.output, self.fingerprint)

    @property
    def lock_path(self) -> str:
        return filesystem.join(self.output, STAGING, lock.NAME)

    def check_lock(self) -> None:
        """To be called before anything is published.

        Raises:
          LockLost: if another run has taken the output folder over.
        """
        check_held(self.lock_path, self.run)

    def temporary_path(self, name: str) -> str:
        """A new path for a file until it is complete; unique, so that attempts that overlap do not meet."""
        return filesystem.join(self.staging, TEMPORARY, f"{name}.{uuid.uuid4().hex}")

    def write(self, path: str, data: bytes) -> None:
        """Writes a whole file. Nothing is left beside it, not even by a kill: what is not complete is in the staging
        folder."""
        with filesystem.create_whole(path, self.temporary_path(path.rpartition("/")[2])) as file:
            file.write(data)

    def write_recorded(self, name: str, files: Mapping[str, bytes]) -> None:
        """Writes files after a record of them, so that a later run knows them for this program's own.

        Args:
          name: of the record.
          files: by their paths below the output folder; existing files are replaced.
        """
        record = [describe_file(path, data) for path, data in files.items()]
        self.write(filesystem.join(self.written_folder, f"{name}.json"), json.dumps(record).encode())
        for path, data in files.items():
            self.write(filesystem.join(self.output, path), data)

    @property
    def plan_path(self) -> str:
        """The work units, a JSON line each."""
        return filesystem.join(self.staging, "plan.jsonl")

    @property
    def finished_folder(self) -> str:
        """A file for each shard that is finished: what `--resume` goes by."""
        return filesystem.join(self.staging, FINISHED)

    @property
    def written_folder(self) -> str:
        """Lists of the files that are written besides the shards, each written before the files it lists."""
        return filesystem.join(self.staging, WRITTEN)

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
