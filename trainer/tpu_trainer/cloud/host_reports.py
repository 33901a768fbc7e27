"""TPUs whose hosts start training at boot: the arguments in their metadata, and the reports that they write.

Each host runs `host_start.sh` at every boot, with arguments from its metadata. The script runs the container and
reports its exit in a file of the run folder. The file's name contains the attempt, which is different for each
requested TPU, and the host's number except for host 0.
"""

from __future__ import annotations

import re
from pathlib import Path

from tpu_trainer.cloud.api import Api
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import ContainerExit
from tpu_trainer.config.files import dump_fit_config
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER
from tpu_trainer.support import files

ATTEMPT = "tokenmill-attempt"
REPORT = "tokenmill-report"
_STARTUP_SCRIPT = Path(__file__).with_name("host_start.sh")


def report_url(config: LaunchConfig, attempt: str) -> str:
    """Returns the URL of host 0's report: the exit status in the first line, then the end of the log.

    Host N writes `{attempt}-N.txt` in the same folder.
    """
    return files.join(config.output_dir, LAUNCH_FOLDER, f"{attempt}.txt")


def host_metadata(config: LaunchConfig, attempt: str) -> dict[str, str]:
    """Returns the metadata with which each host of an attempt starts."""
    return {
        "startup-script": _STARTUP_SCRIPT.read_text(encoding="utf-8"),
        "tokenmill-image": config.cloud.image,
        "tokenmill-config": dump_fit_config(config.for_fit()),
        "tokenmill-name": config.name,
        "tokenmill-strategy": "pjrt" if config.trains_with_pjrt else "tpu",
        REPORT: report_url(config, attempt),
        ATTEMPT: attempt,
    }


def reported_exits(api: Api, config: LaunchConfig, attempt: str) -> list[ContainerExit]:
    """Returns the container exits that the hosts of an attempt have reported, by host number."""
    prefix = report_url(config, attempt).removesuffix(".txt")
    exits = []
    for url in api.list_objects(prefix):
        name = re.fullmatch(r"(?:-(\d+))?\.txt", url.removeprefix(prefix))
        if name:
            text = api.read_object(url) or ""
            status, _, log = text.partition("\n")
            if not re.fullmatch(r"\d{1,3}", status):  # a disk was full, or somebody else has written it
                status, log = "1", f"{url} does not begin with an exit status:\n{text}"
            exits.append(ContainerExit(host=int(name[1] or 0), status=int(status), log=log))
    return sorted(exits, key=lambda container: container.host)
