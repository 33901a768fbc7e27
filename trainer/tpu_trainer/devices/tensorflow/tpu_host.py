"""Detects this machine's TPU and its generation without TensorFlow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tpu_trainer.config import EvaluateConfig, FitConfig, TpuConfig
from tpu_trainer.support.chips import GENERATIONS, generation

_ATTRIBUTE = "/computeMetadata/v1/instance/attributes/accelerator-type"
_FLAVOR = {"Metadata-Flavor": "Google"}
_TIMEOUT = 2  # seconds; the server is on the same machine
_ATTEMPTS = 3
_REMEDY = "name it with --tpu.accelerator_type, such as v5litepod-8"


class UnknownTpuError(Exception):
    """The TPU's generation is unknown. The message gives reason and remedy."""


def tpu_is_here() -> bool:
    """Whether this is a TPU VM: its kernel has devices for the chips."""
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def uses_local_tpu(verb: str, config: FitConfig | EvaluateConfig | object) -> bool:
    """Whether this process uses this machine's TPU, for which TensorFlow loads libtpu.

    In other processes, libtpu would search for a TPU and wait minutes for a metadata server.
    """
    return verb in ("fit", "evaluate") and config.strategy in ("auto", "tpu") and tpu_is_here()


def tpu_generation(tpu: TpuConfig) -> str:
    """Returns the generation of the TPU to train on, a key of chips.GENERATIONS such as v5e.

    The first of these that is set determines it: --tpu.accelerator_type; TPU_ACCELERATOR_TYPE, which GKE sets; Compute
    Engine's metadata server.

    Raises:
        UnknownTpuError: If none is set, or this program does not know the generation.
    """
    for source, value in (
        ("--tpu.accelerator_type", tpu.accelerator_type),
        ("TPU_ACCELERATOR_TYPE", os.environ.get("TPU_ACCELERATOR_TYPE")),
    ):
        if value:
            return _known_generation(value, source)
    return _known_generation(*_from_metadata_server())


def _known_generation(accelerator_type: str, source: str) -> str:
    tpu_generation = generation(accelerator_type)
    if tpu_generation is None:
        raise UnknownTpuError(
            f"{source} is {accelerator_type!r}: the known generations are {', '.join(GENERATIONS)}; {_REMEDY}"
        )
    return tpu_generation


def _from_metadata_server() -> tuple[str, str]:
    """Returns the accelerator type and the URL that it is from."""
    import requests  # half a second to import

    url = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}{_ATTRIBUTE}"
    with requests.Session() as session:
        session.trust_env = False  # a proxy may have a different metadata server
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
