"""The options of `launch` in addition to those of `fit`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from tpu_trainer.cloud.slices import Slice
from tpu_trainer.config import FitConfig
from tpu_trainer.config.devices import TrainingStrategyName
from tpu_trainer.config.ranges import AT_LEAST_1, NOT_NEGATIVE, check_ranges, require
from tpu_trainer.support.errors import UsageError

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
_REGION = r"[a-z]+-[a-z]+\d+"
# The zones of AI hardware alone are named like us-central1-ai1a.
_ZONE = rf"{_REGION}-(ai\d+)?[a-z]"
_MAX_LABEL = 63  # characters of a DNS label
_MACHINE = re.compile(r"(ct\w+)-(?:hightpu|standard)-(\d+)t")
# Families of machine types: the TPU generation, and what an accelerator type counts per chip.
_MACHINES = {"ct4p": ("v4", 2), "ct5lp": ("v5litepod", 1), "ct5p": ("v5p", 2), "ct6e": ("v6e", 1)}
# Options of some services only.
_ONLY = {
    ("gke",): ("cluster", "cluster_location", "namespace", "slices", "queue"),
    ("compute", "gke"): ("reservation", "flex_start"),
    ("compute",): ("boot_image",),
}
_ALL = ("tpu", "compute", "gke", "vertex")
_PLAIN = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_BOOT_IMAGE = r"projects/[-a-z0-9.:]+/global/images/(family/)?[-a-z0-9]+"
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?"
_DNS_RULE = "must be lowercase letters, digits and hyphens, and begin and end with a letter or digit"
# Services, option, pattern of its value unless that is null, and the rule in words.
_PATTERNS = (
    (_ALL, "image", r"[a-z0-9.-]+(:\d+)?/[\w./-]+@sha256:[0-9a-f]{64}", "must be HOST/PATH@sha256:DIGEST"),
    (_ALL, "project", r"[a-z0-9][a-z0-9.:-]*", "must be a project's ID, such as my-project-123"),
    (_ALL, "zone", _ZONE, "must be a zone, such as europe-west4-b"),
    (
        *(_ALL, "name", _NAME.pattern),
        "must be at most 50 lowercase letters, digits and hyphens; the first must be a letter, the last no hyphen",
    ),
    (_ALL, "valid_for", r"\d+[smhd]", "must be a number followed by s, m, h or d, such as 6h"),
    *((("compute",), name, _PLAIN, "must be a name") for name in ("reservation", "network", "subnetwork")),
    (("compute",), "boot_image", _BOOT_IMAGE, "must be projects/P/global/images/family/F"),
    *((("gke",), name, _DNS_LABEL, _DNS_RULE) for name in ("cluster", "namespace", "reservation")),
    (("gke",), "queue", _SUBDOMAIN, f"{_DNS_RULE}; dots are valid, too"),
    (("gke",), "service_account", _SUBDOMAIN, "must be a Kubernetes service account, not an e-mail address"),
    (("gke",), "cluster_location", f"{_REGION}|{_ZONE}", "must be a region or a zone, such as europe-west4"),
)


@dataclass(frozen=True)
class CloudConfig:
    """The Google Cloud resources to train on."""

    project: str
    """The Google Cloud project."""
    zone: str
    """The TPU's zone, such as europe-west4-b. vertex uses only its region, europe-west4."""
    image: str
    """The trainer's image with its digest, such as europe-west4-docker.pkg.dev/P/tokenmill/trainer@sha256:…. A tag is
    not enough, because it can move to another image during a run."""
    service: Literal["tpu", "compute", "gke", "vertex"] = "tpu"
    """tpu: a queued resource, which `launch` monitors, recreates after preemptions and deletes at the end; compute: a
    managed instance group of Compute Engine, with the same care; gke: a
    JobSet in a cluster of GKE, which restarts itself, and which `launch` monitors and deletes at the end; vertex: a
    custom job of Vertex AI, which does all of that itself."""
    name: str | None = None
    """Name of the queued resource and its node, of the instance group, of the JobSet, or of the custom job. Default:
    the last component of output_dir."""
    accelerator_type: str = "v5litepod-8"
    """tpu, compute, gke: generation and size. Up to 8 chips of v5e or v6e are one host; more are a slice of several
    hosts. compute: v5p, v6e or tpu7x."""
    runtime_version: str = "v2-alpha-tpuv5-lite"
    """tpu: the hosts' software. It must match the generation and must not run a TensorFlow of its own."""
    machine_type: str = "ct5lp-hightpu-8t"
    """vertex: the machine type, of one host."""
    topology: str | None = None
    """vertex, compute, gke: the topology of the chips, such as 2x4. Default: 2x4 (vertex); of those that the
    accelerator type can have, the most cubic one (compute, gke)."""
    boot_image: str | None = None
    """compute: image of the hosts' boot disk, as projects/P/global/images/family/F. The hosts install Docker if it has
    none. Default: Google's image for the generation."""
    cluster: str | None = None
    """gke: the cluster's name. It needs nodes with the TPU, or must be able to add them, and the JobSet controller."""
    cluster_location: str | None = None
    """gke: the cluster's region or zone. Default: the zone's region."""
    namespace: str = "default"
    """gke: the JobSet's namespace."""
    slices: int = 1
    """gke: slices that train together, connected by the data center's network; of several hosts each."""
    reservation: str | None = None
    """compute, gke: name of the reservation to use."""
    flex_start: bool = False
    """compute, gke: use hosts of flex-start, which wait for capacity and run for seven days at most."""
    queue: str | None = None
    """gke: Kueue's LocalQueue that admits the JobSet; needed for flex-start with queued provisioning."""
    spot: bool = False
    """Request spot capacity, which costs less and can be preempted at any time. The run then continues on a new TPU."""
    max_preemptions: int = 20
    """tpu, compute, gke: how many times to continue on a new TPU after a preemption."""
    valid_for: str | None = None
    """tpu: how long the request may wait for resources, such as 6h or 90m; null: without limit."""
    service_account: str | None = None
    """Account of the hosts. tpu, compute, vertex: a service account of Google Cloud; default: the project's default
    account, which has more permissions than needed. gke: a Kubernetes service account of the namespace; default:
    default."""
    network: str | None = None
    """VPC network, as projects/P/global/networks/N (vertex) or N (tpu, compute). Default: default."""
    subnetwork: str | None = None
    """tpu, compute: subnetwork of the VPC network."""
    internal_ips: bool = False
    """tpu, compute: use no public IP addresses; the subnetwork needs Private Google Access."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels for billing and search, such as {commit: 1a2b3c4}."""
    poll_seconds: float = 30.0
    """Seconds between two status checks."""
    dry_run: bool = False
    """Print the request as JSON without sending it."""

    def __post_init__(self) -> None:
        for services, name, pattern, rule in _PATTERNS:
            value = getattr(self, name)
            valid = self.service not in services or value is None or re.fullmatch(pattern, value)
            require(bool(valid), f"cloud.{name}", value, rule)
        check_ranges(
            self, "cloud", max_preemptions=NOT_NEGATIVE, poll_seconds=NOT_NEGATIVE, slices=AT_LEAST_1
        )
        for key, value in self.labels.items():
            require(
                bool(
                    re.fullmatch(r"[a-z][-_a-z0-9]{0,62}", key) and re.fullmatch(r"[-_a-z0-9]{0,63}", value)
                ),
                "cloud.labels",
                {key: value},
                "keys and values must be at most 63 lowercase letters, digits, - and _; a key starts with a letter",
            )

        for services, names in _ONLY.items():
            for name in names if self.service not in services else ():
                value = getattr(self, name)
                default = next(each.default for each in fields(self) if each.name == name)
                rule = f"is an option of --cloud.service {' and '.join(services)}"
                require(value == default, f"cloud.{name}", value, rule)
        if self.service == "gke":
            self._check_gke()
        if self.service == "compute":
            self._check_compute()

    def _check_compute(self) -> None:
        self._check_one_kind("hosts")
        machine = Slice.parse(self.accelerator_type, self.topology).machine_type
        rule = "Compute Engine has TPUs v5p, v6e and tpu7x, such as v6e-8; use --cloud.service tpu or gke for others"
        require(machine is not None, "cloud.accelerator_type", self.accelerator_type, rule)

    def _check_one_kind(self, what: str) -> None:
        chosen = [name for name in ("spot", "reservation", "flex_start") if getattr(self, name)]
        if len(chosen) > 1:
            raise UsageError(
                f"--cloud.{' and --cloud.'.join(chosen)}: {what} are of one kind only; choose one"
            )

    def _check_gke(self) -> None:
        rule = "set the name of the GKE cluster to train in"
        require(self.cluster is not None, "cloud.cluster", self.cluster, rule)
        for key, value in self.labels.items():
            rule = "keys and values must begin and end with a letter or digit, for Kubernetes"
            valid = not re.search(r"[-_]$", key) and not re.search(r"^[-_]|[-_]$", value)
            require(valid, "cloud.labels", {key: value}, rule)
        self._check_one_kind("nodes")
        # https://cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice
        one_host = self.hosts == 1
        rule = f"GKE connects only slices of several hosts, and {self.accelerator_type} is one host; use a larger one"
        require(self.slices == 1 or not one_host, "cloud.slices", self.slices, rule)

    @property
    def region(self) -> str:
        """The zone's region."""
        return self.zone.rpartition("-")[0]

    @property
    def location(self) -> str:
        """The region or zone of the GKE cluster."""
        return self.cluster_location or self.region

    @property
    def hosts(self) -> int:
        """Number of hosts of a TPU; those of one that is larger than a host form a slice."""
        if self.service == "vertex":
            return 1
        if old := re.fullmatch(r"v[23]-(\d{1,4})", self.accelerator_type):
            return max(1, int(old[1]) // 8)  # which Slice does not know: GKE and Compute Engine have none
        return Slice.parse(self.accelerator_type, self.topology).hosts

    @property
    def needs_pjrt(self) -> bool:
        """Whether `fit` needs --strategy pjrt on this TPU: TensorFlow's strategy is for one host."""
        return self.service in ("compute", "gke") or self.hosts > 1

    @property
    def tpu_type(self) -> str | None:
        """The requested TPU in the form of --tpu.accelerator_type; None if the machine type is unknown."""
        if self.service != "vertex":
            return self.accelerator_type
        match = _MACHINE.fullmatch(self.machine_type)
        if match is None or match[1] not in _MACHINES:
            return None
        generation, per_chip = _MACHINES[match[1]]
        return f"{generation}-{int(match[2]) * per_chip}"

    @property
    def valid_for_seconds(self) -> int | None:
        """`valid_for` in seconds."""
        if self.valid_for is None:
            return None
        return int(self.valid_for[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[self.valid_for[-1]]


@dataclass(frozen=True)
class LaunchConfig(FitConfig):
    """Trains on a Google Cloud TPU: requests it, starts `fit` there in a container, monitors it and deletes it.

    Examples:
        tokenmill-trainer launch --config roberta-base --data.train gs://BUCKET/dataset/train \\
            --output_dir gs://BUCKET/runs/first --cloud.project PROJECT --cloud.zone europe-west4-b --cloud.image IMAGE
    """

    cloud: CloudConfig = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [("output_dir", self.output_dir)]
        names += [("data.validation", path) for path in self.data.validation_folders.values()]
        names += [("data.choices", path) for path in self.data.choices_files.values()]
        names += [("data.tokenizer", self.data.tokenizer), ("model.init_from", self.model.init_from)]
        names += [("data.train", path) for path in self.data.train_folders]
        for name, path in names:
            if path is not None and not path.startswith("gs://"):
                raise UsageError(
                    f"--{name} is {path!r}: must be a gs:// path, which the TPU's hosts can access"
                )
        if self.training_strategy not in ("tpu", "pjrt"):
            raise UsageError(
                f"--strategy is {self.strategy!r}: `launch` trains on a TPU; omit it, or use --strategy pjrt to train "
                "on it with JAX's runtime"
            )
        if self.mesh != self.mesh.without_processes():
            raise UsageError(
                "--mesh.coordinator_address, --mesh.num_processes and --mesh.process_id are options of `fit`: omit "
                "them, as `launch` sets them on each host"
            )
        if self.cloud.name is None and not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--output_dir is {self.output_dir!r}: its last component is not a valid TPU name; set --cloud.name"
            )
        self._check_service()

    def _check_service(self) -> None:
        cloud = self.cloud
        if self.training_strategy == "tpu" and cloud.needs_pjrt:
            what = f"--cloud.service {cloud.service}"
            if cloud.service == "tpu":
                what = f"{cloud.accelerator_type} has {cloud.hosts} hosts: `launch`"
            raise UsageError(f"--strategy is 'tpu': {what} trains with --strategy pjrt; omit --strategy")
        if cloud.service == "gke":
            # Of a pod, with the five random characters at its end: a DNS label.
            pod = f"{self.name}-fit-{cloud.slices - 1}-{cloud.hosts - 1}-abcde"
            if len(pod) > _MAX_LABEL:
                raise UsageError(
                    f"the JobSet's name is {self.name!r}: must have at most {len(self.name) + _MAX_LABEL - len(pod)} "
                    "characters, so that its pods' names are valid; set --cloud.name"
                )
        elif cloud.service == "tpu" and cloud.accelerator_type.startswith("tpu7x"):
            raise UsageError(
                f"--cloud.accelerator_type is {cloud.accelerator_type!r}: only --cloud.service compute and gke have "
                "this generation"
            )

    @property
    def training_strategy(self) -> TrainingStrategyName:
        """The strategy of `fit` on the requested TPU."""
        if self.strategy != "auto":
            return self.strategy
        return "pjrt" if self.cloud.needs_pjrt else "tpu"

    @property
    def place(self) -> str:
        """Where the resource is: project and zone, or for GKE project, location, cluster and namespace."""
        cloud = self.cloud
        if cloud.service == "gke":
            return f"{cloud.project}/{cloud.location}/{cloud.cluster}/{cloud.namespace}"
        return f"{cloud.project}/{cloud.zone}"

    @property
    def name(self) -> str:
        """The name of the queued resource, instance group, JobSet or custom job."""
        return self.cloud.name or self.output_dir.rstrip("/").rpartition("/")[2]

    def for_fit(self) -> FitConfig:
        """Returns the configuration of `fit` that is the same on all hosts."""
        values = {each.name: getattr(self, each.name) for each in fields(FitConfig)}
        kind = self.tpu.accelerator_type or self.cloud.tpu_type
        tpu = replace(self.tpu, accelerator_type=kind)
        return FitConfig(**values | {"strategy": self.training_strategy, "tpu": tpu})
