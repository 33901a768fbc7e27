"""Compiled programs on disk: the compiler takes minutes, and the same program gives the same answer."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
from pathlib import Path

from tpu_trainer.chips import Topology
from tpu_trainer.tpu_check.compiler import Executable, Module, OutOfMemory, compile_module, versions

_KINDS = {"executable": Executable, "out_of_memory": OutOfMemory}


def default_folder() -> Path:
    """Where a user's caches belong."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / "compile-check"


class Cache:
    """What the compiler said, by the program's hash, the topology and the releases."""

    def __init__(self, *, folder: Path) -> None:
        """
        Args:
            folder: Made where it does not exist; safe to delete at any time.
        """
        self.folder = folder
        self.hits = self.misses = 0

    def compile(self, module: Module, topology: Topology) -> Executable | OutOfMemory:
        """As compiler.compile_module, which it calls only for what it does not hold."""
        key = hashlib.sha256(
            json.dumps([module.digest, topology.name, versions()], sort_keys=True).encode()
        ).hexdigest()
        path = self.folder / f"{key}.json.gz"
        if path.exists():
            self.hits += 1
            with gzip.open(path, "rt") as file:
                entry = json.load(file)
            return _KINDS[entry["kind"]](**entry["values"])
        self.misses += 1
        result = compile_module(module, topology)
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(result, cls))
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        with gzip.open(unfinished, "wt") as file:
            json.dump({"kind": kind, "values": dataclasses.asdict(result)}, file)
        unfinished.rename(path)
        return result
