"""An on-disk cache of lowered programs: lowering a large model takes minutes and is deterministic."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
import secrets
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_trainer.devices.pjrt.stablehlo import Lowered, Program

_log = logging.getLogger(__name__)

_ARTIFACT, _SIGNATURE = "program.mlirbc", "signature.json"
# What zipfile and the parsing of the signature raise besides ValueError, wherever an archive is damaged.
_DAMAGED = (AttributeError, EOFError, LookupError, RuntimeError, TypeError, zipfile.BadZipFile, zlib.error)


def cache_folder(name: str) -> Path:
    """Returns the cache folder `name`, under XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / name


def write_entry(path: Path, data: bytes) -> None:
    """Writes an entry of a cache atomically; creates its folder. Raises OSError if that is impossible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        unfinished.write_bytes(data)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


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
            cached = unpacked(path.read_bytes())
            self.hits += 1
            return cached
        except FileNotFoundError:
            self.misses += 1
        except (OSError, ValueError) as error:
            self.misses += 1
            _log.warning(f"pjrt: {path} cannot be read ({error}): the program is lowered again")
        lowered = program.lower()
        try:
            write_entry(path, packed(lowered))
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
        ValueError: If it is damaged, or is something else.
    """
    from tpu_trainer.devices.pjrt.stablehlo import Lowered

    def arrays(values: list) -> tuple:
        return tuple((tuple(shape), dtype) for shape, dtype in values)

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            signature = json.loads(archive.read(_SIGNATURE))
            artifact = archive.read(_ARTIFACT)
        return Lowered(
            artifact=artifact,
            arguments=arrays(signature["arguments"]),
            results=arrays(signature["results"]),
            aliases={int(argument): result for argument, result in signature["aliases"].items()},
        )
    except _DAMAGED as error:
        raise ValueError(f"damaged: {error}") from error
