"""An on-disk cache of lowered programs: lowering a large model takes minutes and is deterministic."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_trainer.training.stablehlo import Lowered, Program

_log = logging.getLogger(__name__)

_ARTIFACT, _SIGNATURE = "program.mlirbc", "signature.json"


def cache_folder(name: str) -> Path:
    """Returns the cache folder `name`, under XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / name


class LoweringCache:
    """Lowered programs, keyed by a hash of their graph and the installed releases."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: Created if it does not exist. Can safely be deleted at any time.
        """
        self.folder = folder
        self.hits = self.misses = 0

    def lower(self, program: Program) -> Lowered:
        """Returns the cached result, or lowers `program` and caches its result."""
        import jaxlib
        import tensorflow as tf

        # These releases determine what a graph is lowered to.
        parts = [program.digest(), tf.__version__, jaxlib.__version__]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        path = self.folder / f"{key}.zip"
        if (found := self._read(path)) is not None:
            self.hits += 1
            return found
        self.misses += 1
        lowered = program.lower()
        try:
            self._write(path, lowered)
        except OSError as error:
            _log.warning(f"fit: {path} cannot be written ({error}): the next run lowers the program again")
        return lowered

    def _write(self, path: Path, lowered: Lowered) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        signature = dataclasses.asdict(lowered)
        del signature["artifact"]
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_SIGNATURE, json.dumps(signature))
            archive.writestr(_ARTIFACT, lowered.artifact)
        unfinished.rename(path)

    @staticmethod
    def _read(path: Path) -> Lowered | None:
        from tpu_trainer.training.stablehlo import Lowered

        try:
            with zipfile.ZipFile(path) as archive:
                signature = json.loads(archive.read(_SIGNATURE))
                artifact = archive.read(_ARTIFACT)
        except (OSError, zipfile.BadZipFile, KeyError):  # missing, or damaged by a full disk
            return None

        def arrays(values: list) -> tuple:
            return tuple((tuple(shape), dtype) for shape, dtype in values)

        return Lowered(
            artifact=artifact,
            arguments=arrays(signature["arguments"]),
            results=arrays(signature["results"]),
            aliases={int(argument): result for argument, result in signature["aliases"].items()},
        )
