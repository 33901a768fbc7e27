"""The configuration of a run that workers receive: small, frozen and picklable. The launcher creates it once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.tokenizer import LengthLimit
from beam_pipeline.dataset import lock
from beam_pipeline.dataset.finished_units import count_finished
from beam_pipeline.dataset.lock_holder import check_held
from beam_pipeline.dataset.shards import ShardInfo
from beam_pipeline.dataset.staging import FINISHED, STAGING, TEMPORARY, WRITTEN, staging_folder
from beam_pipeline.engines.infilling import Infilling
from beam_pipeline.formats.base import Format
from beam_pipeline.formats.choice import format_for
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.progress import Address
from beam_pipeline.tokenization.template import Template
from tokenmill_reader.format.manifest import describe_file
from tokenmill_reader.format.names import TOKENIZER


@dataclass(frozen=True)
class OutputJob:
    """A run that writes a dataset."""

    output: str
    """The dataset's folder, absolute."""
    run: str
    """The id of the run, which the lock of the output folder must have."""
    detached: bool
    """Whether the launcher does not wait for the end of the run, so that the run itself must release the lock."""
    fingerprint: str
    """Hash of the configuration, inputs and tokenizer. Equal fingerprints give equal shards."""
    progress: Address | None
    """Address to which workers report their progress; None if the run is not local."""

    @property
    def split_names(self) -> tuple[str, ...]:
        """The names of the splits, by their index."""
        raise NotImplementedError

    @property
    def staging(self) -> str:
        """See `staging_folder`."""
        return staging_folder(self.output, self.fingerprint)

    @property
    def plan_path(self) -> str:
        """The file of the work units, one JSON line each."""
        return filesystem.join(self.staging, "plan.jsonl")

    @property
    def lock_path(self) -> str:
        return filesystem.join(self.output, STAGING, lock.NAME)

    def check_lock(self) -> None:
        """Checks that this run still holds the lock. Call this before publishing a file.

        Raises:
            LockLost: If another run has taken over the output folder.
        """
        check_held(self.lock_path, self.run)

    def temporary_path(self, name: str) -> str:
        """Returns a path for an incomplete file. It is unique, so that concurrent attempts do not collide."""
        return filesystem.join(self.staging, TEMPORARY, f"{name}.{uuid.uuid4().hex}")

    def write(self, path: str, data: bytes) -> None:
        """Writes a file atomically. A killed process leaves an incomplete file only in the staging folder."""
        with filesystem.create_whole(path, self.temporary_path(path.rpartition("/")[2])) as file:
            file.write(data)

    def write_recorded(self, name: str, files: Mapping[str, bytes]) -> None:
        """Writes files after a record of them, by which a later run recognizes them as this program's own.

        Args:
            name: Name of the record.
            files: Contents by path below the output folder. Existing files are replaced.
        """
        record = [describe_file(path, data) for path, data in files.items()]
        self.write(filesystem.join(self.written_folder, f"{name}.json"), json.dumps(record).encode())
        for path, data in files.items():
            self.write(filesystem.join(self.output, path), data)

    @property
    def finished_folder(self) -> str:
        """The folder with a record of each finished shard, for `--resume`."""
        return filesystem.join(self.staging, FINISHED)

    @property
    def written_folder(self) -> str:
        """The folder with records of the files that are not shards. Each record is written before its files."""
        return filesystem.join(self.staging, WRITTEN)

    def record_shard(self, info: ShardInfo) -> None:
        """Writes the record of a shard before the shard appears, so that a later run may delete or keep it."""
        self.write(self.shard_record(info.name), json.dumps(asdict(info)).encode())
        self.check_lock()

    def shard_destination(self, split: int, shard: int, name: str) -> dict[str, Any]:
        """Returns the arguments of `write_shard` and `write_documents` that do not depend on the shard's content."""
        return {
            "path": filesystem.join(self.split_folder(split), name),
            "temporary": self.temporary_path(name),
            "split": split,
            "shard": shard,
            "before_publishing": self.record_shard,
        }

    def shard_record(self, name: str) -> str:
        """Returns the path of the record of the shard with this name."""
        return filesystem.join(self.finished_folder, f"{name}.json")

    def split_folder(self, split: int) -> str:
        return filesystem.join(self.output, self.split_names[split])


@dataclass(frozen=True)
class Job(OutputJob):
    """A run of `prepare`, with everything resolved and checked."""

    config: PrepareConfig
    num_units: int
    input_bytes: int
    """Approximate size of the text to read."""
    vocab_size: int
    pad_id: int
    control_ids: frozenset[int]
    """The tokenizer's ids to which no text may encode, unless the options allow it."""
    template: Template
    """The special tokens around each document."""
    threads: int
    """Number of threads of a process. The output does not depend on it."""
    units_at_once: int
    """The number of units that a process without Beam tokenizes at the same time."""
    gathered_bytes: int
    """Size of the rows that a process of several threads gathers at a time. The output does not depend on it."""
    chat: ChatFormat | None = None
    """How the tokenizer writes conversations; None if the documents are texts."""
    infilling: Infilling | None = None
    """Which texts are cut for infilling; None: none are."""

    @property
    def split_names(self) -> tuple[str, ...]:
        return self.config.split_names

    @property
    def length_limit(self) -> LengthLimit | None:
        """What happens to conversations that a row is too short for."""
        return None if self.chat is None else LengthLimit(self.config.max_length, self.config.overlong)

    def describe_finished(self) -> str:
        """Describes how many work units and shards are finished; "" after the commit, which deletes their files."""
        files = filesystem.list_folder(self.staging)
        if not files:
            return ""
        shards = sum(path.startswith(f"{self.finished_folder}/") for path in files)
        return f"{count_finished(files):,} of {self.num_units:,} work units, {shards:,} shards"

    @property
    def description_path(self) -> str:
        """The file with the description of inputs and tokenizer, which is copied into the manifests."""
        return filesystem.join(self.staging, "run.json")

    @property
    def ngram_index_path(self) -> str:
        """The file with the n-grams of the benchmarks of `--decontaminate`."""
        return filesystem.join(self.staging, "benchmarks.npz")

    @property
    def tokenizer_json_path(self) -> str:
        return filesystem.join(self.output, TOKENIZER, "tokenizer.json")

    def make_format(self) -> Format:
        """Returns the format of the shards."""
        return format_for(self.config, self.vocab_size)
