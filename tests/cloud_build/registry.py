"""The sandbox's registry of images: which of buildah's images has which digest."""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.cloud_build.container import Failure


@dataclass(frozen=True)
class Entry:
    """An image in the registry."""

    digest: str
    """sha256:…"""
    local_name: str
    """Its name in buildah's storage."""


class Registry:
    """The registry: a file in the sandbox's folder. REPOSITORY:TAG and REPOSITORY@DIGEST name images."""

    def __init__(self) -> None:
        self._path = Path(os.environ["SANDBOX"]) / "registry.json"

    @staticmethod
    def repository(image: str) -> str:
        """Returns the repository in an image's name."""
        return re.sub(r"(@sha256:\w+|:[\w.-]+)$", "", image)

    def find(self, image: str) -> Entry:
        """Returns the image of this name.

        Raises:
            Failure: If there is none.
        """
        entry = self._read().get(image)
        if entry is None:
            raise Failure(f"manifest for {image} not found: manifest unknown: manifest unknown")
        return Entry(**entry)

    def push(self, image: str, digest: str) -> str:
        """Adds an image of buildah's storage, and returns its digest."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entry = {"digest": digest, "local_name": image}
            content = self._read() | {image: entry, f"{self.repository(image)}@{digest}": entry}
            new_path = self._path.with_suffix(".new")
            new_path.write_text(json.dumps(content))
            new_path.rename(self._path)
        return digest

    def _read(self) -> dict[str, dict[str, str]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}
