"""An on-disk cache of compiler results: a compile takes minutes and is deterministic."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import logging
import zlib
from pathlib import Path

from tpu_trainer.devices.pjrt.lowering_cache import cache_folder, write_entry
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.compiler import (
    Executable,
    MeshModule,
    Module,
    OutOfMemory,
    compile_module,
    versions,
)

_log = logging.getLogger(__name__)

_KINDS = {"executable": Executable, "out_of_memory": OutOfMemory}


class Cache:
    """Compiler results, keyed by the program's hash, topology, options and installed releases."""

    def __init__(self, *, folder: Path) -> None:
        """
        Args:
            folder: Created if it does not exist. Can safely be deleted at any time.
        """
        self.folder = folder
        self.hits = self.misses = 0

    def compile(self, module: Module | MeshModule, topology: Topology) -> Executable | OutOfMemory:
        """Returns the cached result, or calls `compile_module` and caches its result."""
        parts = [module.digest, topology.name, topology.chip.compiler_options, versions()]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{key}.json.gz"
        if (cached := _read(path)) is not None:
            self.hits += 1
            return cached
        self.misses += 1
        result = compile_module(module, topology)
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(result, cls))
        entry = json.dumps({"kind": kind, "values": dataclasses.asdict(result)})
        try:
            write_entry(path, gzip.compress(entry.encode()))
        except OSError as error:
            _log.warning(
                f"compile-check: {path} cannot be written ({error}): the next run compiles the program again"
            )
        return result


def open_cache(folder: str | None) -> Cache:
    """Returns the cache in a folder; None: in the user's cache folder."""
    return Cache(folder=Path(folder) if folder else cache_folder("compile-check"))


def _read(path: Path) -> Executable | OutOfMemory | None:
    """Returns an entry; None if it is missing or damaged."""
    try:
        with gzip.open(path, "rt") as file:
            entry = json.load(file)
        return _KINDS[entry["kind"]](**entry["values"])
    except FileNotFoundError:
        return None
    except (EOFError, OSError, zlib.error, ValueError, KeyError, TypeError):
        _log.warning(f"compile-check: {path} is damaged: its program is compiled again")
        return None
