"""An on-disk cache of lowered programs: lowering a large model takes minutes and is deterministic."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_trainer.training.stablehlo import Lowered, Program

_log = logging.getLogger(__name__)

_ARTIFACT, _SIGNATURE = "program.mlirbc", "signature.json"
# What zipfile raises if an archive is missing or damaged, wherever the damage is.
_UNREADABLE = (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


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

    @staticmethod
    def key(program: Program) -> str:
        """Returns a hash of the program and of the releases, which determine what its graph is lowered to."""
        import jaxlib
        import tensorflow as tf

        parts = [program.digest(), tf.__version__, jaxlib.__version__]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def lower(self, program: Program) -> Lowered:
        """Returns the cached result, or lowers `program` and caches its result."""
        path = self.folder / f"{self.key(program)}.zip"
        try:
            found = unpacked(path.read_bytes())
            self.hits += 1
            return found
        except _UNREADABLE:
            self.misses += 1
        lowered = program.lower()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            unfinished.write_bytes(packed(lowered))
            unfinished.rename(path)
        except OSError as error:
            _log.warning(f"pjrt: {path} cannot be written ({error}): the next run lowers the program again")
        return lowered


def packed(lowered: Lowered) -> bytes:
    """Returns a lowered program as an archive."""
    signature = dataclasses.asdict(lowered)
    del signature["artifact"]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_SIGNATURE, json.dumps(signature))
        archive.writestr(_ARTIFACT, lowered.artifact)
    return data.getvalue()


def unpacked(data: bytes) -> Lowered:
    """Reads an archive that `packed` returned.

    Raises:
        Exceptions of `_UNREADABLE`: If it is damaged.
    """
    from tpu_trainer.training.stablehlo import Lowered

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        signature = json.loads(archive.read(_SIGNATURE))
        artifact = archive.read(_ARTIFACT)

    def arrays(values: list) -> tuple:
        return tuple((tuple(shape), dtype) for shape, dtype in values)

    return Lowered(
        artifact=artifact,
        arguments=arrays(signature["arguments"]),
        results=arrays(signature["results"]),
        aliases={int(argument): result for argument, result in signature["aliases"].items()},
    )
