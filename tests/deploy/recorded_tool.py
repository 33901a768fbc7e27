"""A fake gcloud or docker: rejects commands that are not in commands.json, records the others, gives set answers."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

RECORD = json.loads(Path(__file__).with_name("commands.json").read_text())
_AFTER_IMAGE = "run"  # docker's arguments end at the image; the container's follow


def check(tool: str, words: list[str]) -> str:
    """Returns the command that `words` call.

    Raises:
        ValueError: If the command, a flag or a flag's value is unknown.
    """
    commands = RECORD[tool]["commands"]
    command = next(
        (
            " ".join(words[:count])
            for count in range(min(len(words), 5), 0, -1)
            if " ".join(words[:count]) in commands
        ),
        None,
    )
    if command is None:
        raise ValueError(f"no such command in commands.json: {tool} {' '.join(words)}")
    flags = RECORD[tool]["everywhere"] | commands[command]
    remaining_words = words[len(command.split()) :]
    while remaining_words:
        word, *remaining_words = remaining_words
        if not word.startswith("-") or word == "-":
            if (tool, command) == ("docker", _AFTER_IMAGE):
                break
            continue
        name, has_value, value = word.partition("=")
        kind = flags.get(name)
        if kind is None:
            raise ValueError(f"{tool} {command} has no flag {name}")
        if kind == "bool":
            if has_value:
                raise ValueError(f"{tool} {command}: {name} takes no value")
            continue
        if not has_value:
            if not remaining_words:
                raise ValueError(f"{tool} {command}: {name} needs a value")
            value, *remaining_words = remaining_words
        if isinstance(kind, list) and value not in kind:
            raise ValueError(f"{tool} {command}: {name} is {value!r}; it must be one of {kind}")
    return command


def main() -> int:
    tool, words = Path(sys.argv[0]).name, sys.argv[1:]
    try:
        check(tool, words)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 64
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(json.dumps([tool, *words]) + "\n")
    running, stopped = (Path(os.environ["CALLS"]).with_name(name) for name in ("running", "stopped"))
    if words[0] == "stop":
        if not running.exists():
            print(f"Error response from daemon: No such container: {words[-1]}", file=sys.stderr)
            return 1
        stopped.touch()
    for pattern, status, output in json.loads(Path(os.environ["ANSWERS"]).read_text()):
        if re.search(pattern, " ".join([tool, *words])):
            if output == "until stopped":
                time.sleep(float(os.environ.get("SECONDS_TO_START", 0)))
                running.touch()
                while not stopped.exists():
                    time.sleep(0.02)
            sys.stdout.write(output)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
