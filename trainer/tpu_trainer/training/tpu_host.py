"""The TPU of this machine, found without TensorFlow: whether it is here, and of which generation it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tpu_trainer.chips import GENERATIONS, generation
from tpu_trainer.config import EvaluateConfig, FitConfig, TpuConfig

LOCAL = "local"
_ATTRIBUTE = "/computeMetadata/v1/instance/attributes/accelerator-type"
_FLAVOR = {"Metadata-Flavor": "Google"}
_TIMEOUT = 2  # seconds; the server is on the same machine
_ATTEMPTS = 3
_REMEDY = "name it with --tpu.accelerator_type, such as v5litepod-8"


class UnknownTpuError(Exception):
    """The TPU's generation is not known; the message says why, and how to name it."""


def tpu_is_here() -> bool:
    """Whether this is a TPU VM: its chips are devices of the kernel's."""
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def uses_local_tpu(verb: str, config: FitConfig | EvaluateConfig | object) -> bool:
    """Whether this process itself computes on this machine's TPU, so that TensorFlow has to load libtpu.

    Elsewhere libtpu searches for a TPU and waits minutes for a metadata server.
    """
    if verb == "host-server":
        return True
    if verb not in ("fit", "evaluate") or config.strategy not in ("auto", "tpu"):
        return False
    name = config.tpu.name if isinstance(config, FitConfig) else LOCAL
    return name == LOCAL and tpu_is_here()


def tpu_generation(tpu: TpuConfig) -> str:
    """The generation of the TPU to compute on, as chips names it, such as v5e.

    The first of these decides: --tpu.accelerator_type; TPU_ACCELERATOR_TYPE, which GKE sets; Compute Engine's metadata
    server. Raises UnknownTpuError if none of them knows, or if it is a generation that this program does not know.
    """
    for source, value in (
        ("--tpu.accelerator_type", tpu.accelerator_type),
        ("TPU_ACCELERATOR_TYPE", os.environ.get("TPU_ACCELERATOR_TYPE")),
    ):
        if value:
            return _known(value, source)
    return _known(*_from_metadata_server())


def _known(accelerator_type: str, source: str) -> str:
    found = generation(accelerator_type)
    if found is None:
        raise UnknownTpuError(
            f"{source} is {accelerator_type!r}: the known generations are {', '.join(GENERATIONS)}; {_REMEDY}"
        )
    return found


def _from_metadata_server() -> tuple[str, str]:
    """The accelerator type and the URL that it is from."""
    import requests  # half a second

    url = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}{_ATTRIBUTE}"
    with requests.Session() as session:
        session.trust_env = False  # a proxy has a metadata server of its own, or none
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = session.get(url, headers=_FLAVOR, timeout=_TIMEOUT, allow_redirects=False)
            except requests.RequestException as error:
                reason = f"{url} cannot be read ({error})"
                continue
            if response.status_code < 500 or attempt == _ATTEMPTS:
                break
        else:
            raise UnknownTpuError(f"the TPU's generation is unknown: {reason}; {_REMEDY}")
    text = response.text.strip()
    foreign = response.headers.get("Metadata-Flavor") != "Google"
    if response.status_code != 200 or foreign or not re.fullmatch(r"[\w-]{1,63}", text):
        answer = "the answer is not a metadata server's" if foreign else repr(text[:100])
        raise UnknownTpuError(
            f"the TPU's generation is unknown: {url}: status {response.status_code}, {answer}; {_REMEDY}"
        )
    return text, url
