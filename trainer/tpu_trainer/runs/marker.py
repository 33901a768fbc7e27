"""complete.json, a checkpoint's last file: its metadata, sizes and CRC-32C of its other files, and its own CRC-32C."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import google_crc32c

from tpu_trainer.support import files
from tpu_trainer.support.files import FileInfo

NAME = "complete.json"
_FILES, _CHECKSUM = "files", "crc32c"


@dataclass(frozen=True)
class Marker:
    """The content of complete.json."""

    metadata: dict[str, Any]
    """Includes the step."""
    files: Mapping[str, FileInfo]
    """The other files by name."""

    def to_text(self) -> str:
        """Returns the file's text."""
        values = self.metadata | {_FILES: {name: asdict(info) for name, info in self.files.items()}}
        checksum = google_crc32c.value(_text(values).encode())
        return _text(values | {_CHECKSUM: f"{checksum:08x}"})

    @classmethod
    def parse(cls, text: str, *, step: int) -> Marker:
        """Parses the text of the checkpoint of `step`.

        Raises:
            ValueError: If it is damaged.
        """
        try:
            values = json.loads(text)
        except RecursionError as error:
            raise ValueError(str(error)) from error
        if not isinstance(values, dict) or values.get("step") != step:
            raise ValueError(f"it is not of step {step}")
        try:
            listed = {name: FileInfo(**info) for name, info in values[_FILES].items()}
            marker = cls({k: v for k, v in values.items() if k not in (_FILES, _CHECKSUM)}, listed)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its list of files is damaged: {error}") from error
        if text != marker.to_text():
            raise ValueError("its checksum does not match")
        return marker

    def share(self, index: int, count: int) -> set[str]:
        """Returns the names of the files that process `index` of `count` reads to verify them, about as much each.

        Each file is in the share of one process. The files are in the order of the processes that wrote them: a run
        that continues with as many reads from these files what it verifies.

        Example, files of 3, 3, 2, 2 and 1 bytes, two processes:
            0: the first two; 1: the others
        """
        total, start, names = sum(info.size for info in self.files.values()), 0, set()
        for name, info in self.files.items():
            middle = start + info.size / 2
            if min(count - 1, int(middle * count / max(total, 1))) == index:
                names.add(name)
            start += info.size
        return names

    def damage_of(self, folder: str, *, contents: Collection[str]) -> str | None:
        """Describes the first of the files in `folder` that is damaged; None if present is none.

        Args:
            folder: The checkpoint's.
            contents: The names of the files whose checksums to compare, which reads local files; sizes are always
                compared.
        """
        present = files.list_checksums(folder, self.files, read=contents)
        for name, info in self.files.items():
            if name not in present:
                return f"{name} is missing"
            if present[name].size != info.size:
                return f"{name} has {present[name].size} bytes instead of {info.size}"
            if name in contents and present[name].crc32c != info.crc32c:
                return f"{name} has the CRC-32C {present[name].crc32c} instead of {info.crc32c}"
        return None


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
