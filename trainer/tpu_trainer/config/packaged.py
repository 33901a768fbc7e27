"""The configurations that the package contains, for `--config NAME`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile

from tokenmill_reader.console.spelling import suggestion
from tpu_trainer.support.errors import UsageError

_FOLDER = Path(__file__).parents[1] / "configs"


class ConfigFile(ActionConfigFile):
    """The option `--config`: a file, or the bare name of a packaged configuration."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Reads the file into `cfg`."""
        super().__call__(parser, cfg, config_file(values), option_string)


def config_file(value: str) -> str:
    """Returns the file of a configuration.

    Args:
        value: A file, or a name without folder and suffix, such as `qwen3-0.6b`. An existing file of that name comes
            before the packaged one.

    Raises:
        UsageError: If neither a file nor a packaged configuration has the name.
    """
    is_name = re.fullmatch(r"[\w.-]{1,99}", value) and not value.endswith((".yaml", ".yml", ".json"))
    if not is_name or Path(value).is_file():
        return value
    names = sorted(path.stem for path in _FOLDER.glob("*.yaml"))
    if value not in names:
        raise UsageError(
            f"--config {value}: neither a file nor one of the packaged configurations: {', '.join(names)}"
            f"{suggestion(value, names)}"
        )
    return str(_FOLDER / f"{value}.yaml")
