"""The interface of a service of Google Cloud that trains a run: TPU VMs, Compute Engine, GKE or Vertex AI."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

from tpu_trainer.cloud.config import LaunchConfig

OPTIONS = "tokenmill-options"
"""Name under which a resource records `recorded_options`."""
_FREE = ("labels", "poll_seconds", "dry_run", "max_preemptions")
"""Fields of `--cloud` that can differ between two commands that manage the same resource."""
_MAX_DIFFERENCES = 5
_MAX_SHOWN = 200  # characters of a value


class Resource(NamedTuple):
    """The resource of a run on Google Cloud."""

    identity: str
    """Another resource of the same name has another one."""
    deleting: bool = False
    creating: bool = False
    """Whether a part is being created."""
    complete: bool = True
    """Whether all parts exist."""
    conflict: str | None = None
    """Why it is not the run's, after "a … of this name exists, but "; None if it is the run's."""


class State(NamedTuple):
    """The state of the training on an existing resource."""

    name: Literal["waiting", "active", "preempted", "done", "failed", "unknown"]
    """preempted: Google Cloud takes the TPU away, or has done so."""
    text: str = ""
    """The reason why it waits or failed, or its unknown state."""


class Service(ABC):
    """The operations that a run needs. All requests are sent once, and raise the errors of `google.answered`."""

    noun: str
    """The kind of the requested resource, such as `queued resource`."""
    requested: str
    """The requested resource and its location, for messages."""
    delete_command: str
    """Shell commands that delete what may exist."""
    if_killed = "the training goes on; delete it with"
    """The advice if `launch` is killed, before `delete_command`."""
    in_parts = False
    """Whether there are parts, which are created and deleted one after the other."""
    visible_at_once = False
    """Whether `find` returns every resource whose request was answered, until it is deleted."""

    @staticmethod
    @abstractmethod
    def preview(config: LaunchConfig) -> dict:
        """Returns what would be requested, as JSON."""

    def refuse(self) -> None:  # noqa: B027 (most services find out by the request)
        """Raises CloudError if the request cannot succeed, before anything is requested."""

    @abstractmethod
    def find(self) -> Resource | None:
        """Returns what exists; None for nothing."""

    @abstractmethod
    def request(self) -> bool:
        """Requests what is missing. Returns False if something of this name exists.

        After UnansweredError, `find` shows whether the request was executed. Repeating it creates nothing twice.
        """

    @abstractmethod
    def state(self) -> State:
        """Returns how far the training on what `find` has returned last is."""

    @abstractmethod
    def delete(self) -> None:
        """Starts to delete what `find` has returned last, or its next part; does nothing if it is gone."""

    def new_attempt(self) -> None:  # noqa: B027 (of services that do not restart by themselves)
        """Lets `request` request another TPU than before."""


def recorded_options(config: LaunchConfig) -> str:
    """Returns the options that all commands which manage a resource must share, as JSON."""
    cloud = {key: value for key, value in dataclasses.asdict(config.cloud).items() if key not in _FREE}
    options = dataclasses.asdict(config.for_fit()) | {"cloud": cloud}
    return json.dumps(options | {"output_dir": config.output_dir.rstrip("/")}, sort_keys=True)


def conflict_of(config: LaunchConfig, options: str | None, delete_command: str) -> str | None:
    """Returns `Resource.conflict` of a resource that has recorded `options`; None: it has recorded none."""
    try:
        recorded = json.loads(options or "{}")
        folder = recorded.get("output_dir")
    except (ValueError, AttributeError):  # somebody else's
        folder = None
    if folder != config.output_dir.rstrip("/"):
        return f"not for {config.output_dir}; choose another --cloud.name"
    own_options, other_options = _flat(json.loads(recorded_options(config))), _flat(recorded)
    different = [
        name for name in {**own_options, **other_options} if own_options.get(name) != other_options.get(name)
    ]
    if not different:
        return None
    names = "; ".join(
        f"{name} is {_shown(other_options.get(name))} there and {_shown(own_options.get(name))} here"
        for name in different[:_MAX_DIFFERENCES]
    )
    return f"with other options: {names}. Use the same options, or delete it: {delete_command}"


def _flat(options: dict, prefix: str = "") -> dict[str, Any]:
    """Returns options by their names: {"train": {"steps": 7}} becomes {"train.steps": 7}."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if value and isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
