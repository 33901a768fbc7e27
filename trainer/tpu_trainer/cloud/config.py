"""What `launch` can be told, beside all that `fit` can."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from tpu_trainer.config import FitConfig
from tpu_trainer.errors import UsageError

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
# Families of machine types, and the names of their TPUs.
_MACHINES = {"ct4p": "v4", "ct5lp": "v5litepod", "ct5p": "v5p", "ct6e": "v6e"}
_IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?/[\w./-]+@sha256:[0-9a-f]{64}")


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise UsageError(f"--cloud.{name} is {value!r}: {rule}")


@dataclass(frozen=True)
class CloudConfig:
    """Where to train."""

    project: str
    """The Google Cloud project."""
    zone: str
    """The TPU's zone, such as europe-west4-b; for vertex its region counts, europe-west4."""
    image: str
    """The trainer's image by digest, such as europe-west4-docker.pkg.dev/P/tokenmill/trainer@sha256:…: what runs must
    not change with a tag."""
    service: Literal["tpu", "vertex"] = "tpu"
    """tpu: a queued resource, which is watched here, made again after preemptions and deleted at the end; vertex: a
    custom job of Vertex AI, which does that itself."""
    name: str | None = None
    """Of the queued resource and its node, or of the custom job. Default: the last part of output_dir."""
    accelerator_type: str = "v5litepod-8"
    """tpu: generation and size. Up to 8 chips of v5e or v6e are one host; more are a slice of several."""
    runtime_version: str = "v2-alpha-tpuv5-lite"
    """tpu: the software of the hosts; it must fit the generation, and bring no TensorFlow of its own that runs."""
    machine_type: str = "ct5lp-hightpu-8t"
    """vertex: the machine, of one host."""
    topology: str = "2x4"
    """vertex: how its chips are arranged."""
    spot: bool = False
    """Ask for capacity that costs less and may be taken away at any time. The run continues on a new TPU then."""
    max_preemptions: int = 20
    """tpu: so many times a TPU that was taken away is asked for anew."""
    valid_for: str | None = None
    """tpu: how long the request may wait for resources, such as 6h or 90m; null: as long as it takes."""
    service_account: str | None = None
    """Whose rights the hosts have. Default: the project's default account, which has more than are needed."""
    network: str | None = None
    """VPC network, as projects/P/global/networks/N (vertex) or N (tpu). Default: default."""
    subnetwork: str | None = None
    """tpu: a subnetwork of it."""
    internal_ips: bool = False
    """tpu: no public addresses; the subnetwork needs Private Google Access."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels for the bill and for searches, such as {commit: 1a2b3c4}."""
    poll_seconds: float = 30.0
    """Time between two looks at how things stand."""
    dry_run: bool = False
    """Print, as JSON, what would be asked for, and ask for nothing."""

    def __post_init__(self) -> None:
        _require(bool(_IMAGE.fullmatch(self.image)), "image", self.image, "must be HOST/PATH@sha256:DIGEST")
        _require(
            bool(re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", self.zone)),
            "zone",
            self.zone,
            "must be such as europe-west4-b",
        )
        _require(
            self.name is None or bool(_NAME.fullmatch(self.name)),
            "name",
            self.name,
            "must be small letters, digits and hyphens, at most 50, with a letter first",
        )
        _require(self.max_preemptions >= 0, "max_preemptions", self.max_preemptions, "must not be negative")
        _require(self.poll_seconds >= 0, "poll_seconds", self.poll_seconds, "must not be negative")
        _require(
            self.valid_for is None or bool(re.fullmatch(r"\d+[smhd]", self.valid_for)),
            "valid_for",
            self.valid_for,
            "must be a number and s, m, h or d, such as 6h",
        )
        for key, value in self.labels.items():
            _require(
                bool(
                    re.fullmatch(r"[a-z][-_a-z0-9]{0,62}", key) and re.fullmatch(r"[-_a-z0-9]{0,63}", value)
                ),
                "labels",
                {key: value},
                "keys and values must be small letters, digits, - and _, at most 63",
            )

    @property
    def region(self) -> str:
        """The zone's region."""
        return self.zone.rpartition("-")[0]

    @property
    def tpu_type(self) -> str | None:
        """What is asked for, as `fit` takes it in --tpu.accelerator_type; None if the machine type does not tell."""
        if self.service == "tpu":
            return self.accelerator_type
        family, _, size = self.machine_type.partition("-hightpu-")
        generation = _MACHINES.get(family)
        return None if generation is None else f"{generation}-{size.removesuffix('t')}"

    @property
    def valid_for_seconds(self) -> int | None:
        """`valid_for` in seconds."""
        if self.valid_for is None:
            return None
        return int(self.valid_for[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[self.valid_for[-1]]


@dataclass(frozen=True)
class LaunchConfig(FitConfig):
    """Trains on a TPU of Google Cloud: asks for it, starts `fit` there in a container, follows it, gives it back."""

    cloud: CloudConfig = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [("output_dir", self.output_dir), ("data.validation", self.data.validation)]
        names += [("data.tokenizer", self.data.tokenizer), ("model.init_from", self.model.init_from)]
        names += [("data.train", path) for path in self.data.train_weights]
        for name, path in names:
            if path is not None and not path.startswith("gs://"):
                raise UsageError(f"--{name} is {path!r}: a TPU's hosts read and write gs:// only")
        if self.strategy not in ("auto", "tpu") or self.tpu.name != "local":
            raise UsageError(
                "--strategy and --tpu.name are for `fit`: `launch` sets them for the TPU that it gets"
            )
        if self.cloud.name is None and not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--output_dir is {self.output_dir!r}: its last part cannot be the name of a TPU; give one with "
                "--cloud.name"
            )

    @property
    def name(self) -> str:
        """Of what is asked for."""
        return self.cloud.name or self.output_dir.rstrip("/").rpartition("/")[2]

    def for_fit(self) -> FitConfig:
        """What `fit` is told on the host."""
        values = {each.name: getattr(self, each.name) for each in fields(FitConfig)}
        kind = self.tpu.accelerator_type or self.cloud.tpu_type
        return FitConfig(**values | {"strategy": "tpu", "tpu": replace(self.tpu, accelerator_type=kind)})


@dataclass(frozen=True)
class HostServerConfig:
    """Serves this host's chips to the host that trains; `launch` starts it on slices of several hosts."""

    addresses: str
    """ADDRESS:PORT of every host, in the order of their numbers, with commas between them."""
    index: int
    """This host's number, from 0."""

    def __post_init__(self) -> None:
        hosts = self.addresses.split(",")
        if not 0 <= self.index < len(hosts):
            raise UsageError(f"--index is {self.index}: there are {len(hosts)} hosts in --addresses")
