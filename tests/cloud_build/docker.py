"""The sandbox's `docker`: builds images with buildah, and runs programs in their file systems, without a daemon.

A container outlives its client, its program has the process id 1, and `stop` sends SIGTERM and later SIGKILL, as with
docker. It supports only the commands and options that the builds and the TPU's hosts use. Standard
library only.

$SANDBOX is the sandbox's folder, see `sandbox.Sandbox`. If $MACHINE_WITHOUT_TPU is set, the trainer's image for a CPU
runs instead of that for a TPU, with `--strategy cpu`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.cloud_build.container import Container, Failure, containers, supervise
from tests.cloud_build.registry import Registry
from tests.google_cloud.metadata_server import TOKEN
from tests.images.buildah import OFFLINE, buildah, inspect

_POLL_SECONDS = 0.05
_DIGEST_FORMAT = "{{index .RepoDigests 0}}"


def build(words: Sequence[str]) -> None:
    parser = _parser("build")
    parser.add_argument("--file", required=True)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--target")
    parser.add_argument("--tag", required=True)
    parser.add_argument("context")
    args = parser.parse_args(words)
    options = [*OFFLINE, "--file", args.file, "--tag", args.tag]
    options += [word for each in args.build_arg for word in ("--build-arg", each)]
    options += ["--target", args.target] if args.target else []
    print(buildah("build", *options, args.context))


def push(words: Sequence[str]) -> None:
    image = _one("push", words)
    print(Registry().push(image, inspect(image)["FromImageDigest"]))


def pull(words: Sequence[str]) -> None:
    parser = _parser("pull")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("image")
    image = parser.parse_args(words).image
    Registry().find(image)
    print(image)


def inspect_image(words: Sequence[str]) -> None:
    parser = _parser("inspect")
    parser.add_argument("--format", choices=[_DIGEST_FORMAT], required=True)
    parser.add_argument("image")
    image = parser.parse_args(words).image
    print(f"{Registry.repository(image)}@{Registry().find(image).digest}")


def login(words: Sequence[str]) -> None:
    parser = _parser("login")
    parser.add_argument("--username", choices=["oauth2accesstoken"], required=True)
    parser.add_argument("--password-stdin", action="store_true", required=True)
    parser.add_argument("server")
    parser.parse_args(words)
    if sys.stdin.read().strip() != TOKEN:
        raise Failure("unauthorized: the token is not valid")
    print("Login Succeeded")


def run(words: Sequence[str]) -> int:
    parser = _parser("run")
    for flag in ("--rm", "--detach", "--privileged"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--name", required=True)
    parser.add_argument("--network", "--net", choices=["cloudbuild", "host"], required=True)
    for option in ("--entrypoint", "--user", "--shm-size", "--stop-timeout", "--log-driver"):
        parser.add_argument(option)
    for option in ("--env", "--volume", "--label", "--log-opt"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)  # without a "--" at their beginning
    args = parser.parse_args(words)
    image, arguments = Registry().find(args.image).local_name, words[words.index(args.image) + 1 :]
    if "MACHINE_WITHOUT_TPU" in os.environ:
        assert Registry.repository(image).endswith("/trainer"), image
        image = "localhost/trainer:cpu"
        arguments = [*arguments, "--strategy", "cpu"]
    config = inspect(image)["OCIv1"]["config"]
    entrypoint = [args.entrypoint] if args.entrypoint else config["Entrypoint"]
    container = Container(args.name)
    container.create(
        image=image,
        command=[*entrypoint, *(arguments or config.get("Cmd", []))],
        environment=[*config.get("Env", []), *args.env],
        user=args.user or config.get("User", ""),
        folder=config.get("WorkingDir") or "/",
        volumes=args.volume,
        removed_at_end=args.rm,
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-S", "-m", "tests.cloud_build.docker", "supervise", args.name],
        start_new_session=True,  # it outlives this client
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if args.detach:
        print(args.name)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: container.send(number))
    with container.log.open("rb") as log:
        while True:
            has_ended = supervisor.poll() is not None
            while text := log.read(1 << 16):
                sys.stdout.buffer.write(text)
            sys.stdout.flush()
            if has_ended:
                return supervisor.returncode
            time.sleep(_POLL_SECONDS)


def stop(words: Sequence[str]) -> None:
    parser = _parser("stop")
    parser.add_argument("-t", type=float, default=10)
    parser.add_argument("name")
    args = parser.parse_args(words)
    Container(args.name).stop(args.t)
    print(args.name)


def remove(words: Sequence[str]) -> None:
    parser = _parser("rm")
    parser.add_argument("--force", action="store_true", required=True)
    parser.add_argument("names", nargs="+")
    for name in parser.parse_args(words).names:
        with contextlib.suppress(Failure):  # there is none
            Container(name).remove()


def logs(words: Sequence[str]) -> None:
    parser = _parser("logs")
    parser.add_argument("--tail", type=int, required=True)
    parser.add_argument("name")
    args = parser.parse_args(words)
    lines = Container(args.name).check().log.read_text(errors="replace").splitlines(keepends=True)
    sys.stdout.write("".join(lines[-args.tail :]))


def list_containers(words: Sequence[str]) -> None:
    _parser("ps").parse_args(words)
    print(json.dumps([container.name for container in containers() if container.is_running()]))


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(f"docker {command}", allow_abbrev=False, add_help=False)


def _one(command: str, words: Sequence[str]) -> str:
    parser = _parser(command)
    parser.add_argument("image")
    return parser.parse_args(words).image


COMMANDS = {
    "build": build,
    "inspect": inspect_image,
    "login": login,
    "logs": logs,
    "ps": list_containers,
    "pull": pull,
    "push": push,
    "rm": remove,
    "run": run,
    "stop": stop,
    "supervise": lambda words: supervise(Container(words[0])),
}


def main() -> int:
    try:
        return COMMANDS[sys.argv[1]](sys.argv[2:]) or 0
    except Failure as error:
        print(f"docker: Error response from daemon: {error}", file=sys.stderr)
        return error.status
    except KeyError as error:
        print(f"docker: there is no command {error} here", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
