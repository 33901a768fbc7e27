"""A container of the sandbox: a folder with its description, its log, and its exit status once it has ended.

Its supervisor is a process of its own. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.images.buildah import buildah

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_ENVIRONMENT = {
    # The sandbox's authority, instead of the public ones that these libraries bring along.
    **dict.fromkeys(("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), CERTIFICATES),
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": CERTIFICATES,
}
_POLL_SECONDS = 0.05
_SECONDS_TO_START = 120


class Failure(Exception):
    """The daemon refuses a command. The status is that of the client."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status


class Container:
    """A container. Only `create` makes one.

    Attributes:
        name: Its name.
        log: The file with its output.
    """

    def __init__(self, name: str):
        self.name = name
        self._folder = Path(os.environ["SANDBOX"]) / "containers" / name
        self.log = self._folder / "log"

    def create(
        self,
        *,
        image: str,
        command: Sequence[str],
        environment: Sequence[str],
        user: str,
        folder: str,
        volumes: Sequence[str],
        removed_at_end: bool,
    ) -> None:
        """Describes a new container.

        Args:
            image: Its image, in buildah's storage.
            command: Its program and arguments.
            environment: NAME=VALUE; the last one of a name applies.
            user: The user's number; "" is root.
            folder: The working directory.
            volumes: SOURCE:TARGET or SOURCE:TARGET:ro.
            removed_at_end: Whether nothing of it remains after its end.

        Raises:
            Failure: If the name is taken.
        """
        self._folder.parent.mkdir(exist_ok=True)
        try:
            self._folder.mkdir()
        except FileExistsError:
            raise Failure(f'Conflict. The container name "/{self.name}" is already in use', 125) from None
        self.log.touch()
        description = {
            "image": image,
            "command": list(command),
            "environment": list(environment),
            "user": user,
            "folder": folder,
            "volumes": list(volumes),
            "removed_at_end": removed_at_end,
        }
        self._path("description.json").write_text(json.dumps(description))

    @property
    def description(self) -> dict:
        return json.loads(self._path("description.json").read_text())

    def check(self) -> Container:
        """Returns this container.

        Raises:
            Failure: If it does not exist.
        """
        if not self._folder.exists():
            raise Failure(f"No such container: {self.name}")
        return self

    def is_running(self) -> bool:
        """Returns whether the container exists and has not ended."""
        return self._folder.exists() and not self._path("status").exists()

    def send(self, number: int) -> None:
        """Sends a signal to the container's first process, if it runs."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(self._first_process(), number)

    def stop(self, seconds: float) -> None:
        """Sends SIGTERM, and SIGKILL if the container has not ended in time. Waits for its end.

        Raises:
            Failure: If it does not exist.
        """
        self.check()
        self.send(signal.SIGTERM)
        kill_at = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < kill_at:
            time.sleep(_POLL_SECONDS)
        self._kill()

    def remove(self) -> None:
        """Kills the container if it runs, and removes what remains of it.

        Raises:
            Failure: If it does not exist.
        """
        self.check()._kill()
        self.delete()

    def delete(self) -> None:
        """Deletes the folder of a container that has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        while self.is_running():
            self.send(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def record_start(self, pid: int) -> None:
        """Records the process that is the parent of the container's first one."""
        self._write("pid", str(pid))

    def record_end(self, status: int) -> None:
        """Records the exit status."""
        self._write("status", str(status))

    def _first_process(self) -> int:
        """Returns its process id outside of the container. Waits until a new container has started its program.

        Raises:
            FileNotFoundError: If it has ended.
        """
        deadline = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < deadline:
            if self._path("pid").exists():
                parent = self._path("pid").read_text()
                children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
                if children and _has_started(children[0]):
                    return int(children[0])
            elif not self.is_running():
                raise FileNotFoundError(self.name)
            time.sleep(_POLL_SECONDS)
        raise Failure(f"{self.name} does not start")

    def _write(self, name: str, text: str) -> None:
        self._path(f"{name}.new").write_text(text)
        self._path(f"{name}.new").rename(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / name


def _has_started(process: str) -> bool:
    """Returns whether a first process has become the container's program. Before, it ignores signals."""
    try:
        program = Path(f"/proc/{process}/comm").read_text().strip()
        return program not in ("chroot", "env") and str(Path(f"/proc/{process}/root").readlink()) != "/"
    except FileNotFoundError:  # it has ended
        return True


def containers() -> list[Container]:
    """Returns all containers."""
    folders = (Path(os.environ["SANDBOX"]) / "containers").glob("*")
    return [Container(path.name) for path in sorted(folders)]


def supervise(container: Container) -> int:
    """Runs a new container to its end, and returns its exit status."""
    description = container.description
    working_container = buildah("from", "--pull-never", description["image"]).strip()
    try:
        root = Path(buildah("mount", working_container).strip())
        with container.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "sh",
                    "-ec",
                    _script(root, description),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
            )
        container.record_start(process.pid)
        status = process.wait()
        status = 128 - status if status < 0 else status
    finally:
        buildah("rm", working_container)
    container.record_end(status)
    if description["removed_at_end"]:
        container.delete()
    return status


def _script(root: Path, description: dict) -> str:
    """Returns the commands that become the container's program. A shell in its namespaces runs them."""
    sandbox = Path(os.environ["SANDBOX"])
    mounts = [f"{sandbox}/hosts:/etc/hosts", f"{sandbox}/ca.pem:{CERTIFICATES}", *description["volumes"]]
    lines = []
    for mount in mounts:
        source, target, *options = mount.split(":")
        place = shlex.quote(f"{root}{target}")
        make = f"mkdir -p {place}" if Path(source).is_dir() else f"mkdir -p $(dirname {place}); touch {place}"
        lines += [make, f"mount --bind {shlex.quote(source)} {place}"]
        if options:
            lines.append(f"mount -o remount,bind,{options[0]} {place}")
    lines += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    user = description["user"] or "0"
    home = "/root" if user == "0" else _home(root, user)
    variables = dict(each.split("=", 1) for each in description["environment"])
    variables = {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin"} | variables | _ENVIRONMENT
    group = user if ":" in user else f"{user}:{user}"
    words = ["chroot", f"--userspec={group}", str(root), "env", "-i", f"--chdir={description['folder']}"]
    words += [*(f"{name}={value}" for name, value in variables.items()), *description["command"]]
    return "\n".join([*lines, f"exec {shlex.join(words)}"])


def _home(root: Path, user: str) -> str:
    """Returns the home folder of a user's number; "/" for one that the image does not know."""
    rows = [line.split(":") for line in (root / "etc/passwd").read_text().splitlines()]
    return next((row[5] for row in rows if row[2] == user), "/")
