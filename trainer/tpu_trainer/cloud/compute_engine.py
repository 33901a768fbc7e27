"""Creates, watches and deletes a TPU of Compute Engine; compute_requests.py says what it consists of."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.cloud import compute_v1

from tpu_trainer.cloud.compute_requests import bodies, description, owner
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import Google, RefusedError, UnansweredError, create, get
from tpu_trainer.cloud.hosts import ATTEMPT, HostReports
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import OPTIONS, Resource, Service, State, conflict_of
from tpu_trainer.support.errors import CloudError

TAKEN_STATUSES = (
    *("STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED"),
    *("DEPROVISIONING", "PENDING_STOP", "REPAIRING"),
)
"""Statuses of an instance that Compute Engine takes away, or has taken away."""
TAKEN_ACTIONS = ("ABANDONING", "DELETING", "RECREATING", "RESTARTING", "RESUMING", "STARTING")
"""Actions of a group on an instance that has run, or that is being deleted."""
CREATING = ("CREATING", "CREATING_WITHOUT_RETRIES")
# Parts of the codes of errors after which the group tries again. All others end the request.
_TRANSIENT = ("POOL_EXHAUSTED", "STOCKOUT", "INTERNAL", "RATE", "UNAVAILABLE", "TIMEOUT", "NOT_READY")
_LOST_CHECKS = 5
"""Status checks in a row without instances that are being created, after which missing ones are lost."""
_MAX_FAILED_DELETIONS = 60
"""The most failed deletions of a part, which is in use for a moment after the group has been deleted."""
_IN_USE = "resourceInUseByAnotherResource"


class _Kind(NamedTuple):
    """A kind of part: the classes of its client and its message, and its name in requests."""

    client: type
    message: type
    noun: str
    zonal: bool


_KINDS = {
    "template": _Kind(
        compute_v1.RegionInstanceTemplatesClient, compute_v1.InstanceTemplate, "instance_template", False
    ),
    "policy": _Kind(compute_v1.ResourcePoliciesClient, compute_v1.ResourcePolicy, "resource_policy", False),
    "group": _Kind(
        compute_v1.InstanceGroupManagersClient,
        compute_v1.InstanceGroupManager,
        "instance_group_manager",
        True,
    ),
}
"""The kinds in the order of their creation. They are deleted in reverse."""


class _Operation(NamedTuple):
    """A long-running operation on a part."""

    part: str
    name: str
    creates: bool


class ComputeEngine(Service):
    """The group of a run, with its template and policy."""

    noun = "managed instance group, instance template or resource policy"
    in_parts = True

    def __init__(self, google: Google, objects: Objects, config: LaunchConfig) -> None:
        self._config = config
        self._reports = HostReports(objects, config)
        cloud, name = config.cloud, config.name
        self._parts = list(bodies(config, ""))
        self._clients = {part: google.client(_KINDS[part].client) for part in self._parts}
        self._operations = {
            True: google.client(compute_v1.ZoneOperationsClient),
            False: google.client(compute_v1.RegionOperationsClient),
        }
        self._resources: dict[str, Any] = dict.fromkeys(self._parts)
        self._failed_deletions = 0  # since one has succeeded
        self.requested = f"a {cloud.accelerator_type} in {cloud.zone}"
        region = f"--project {cloud.project} --region {cloud.region} --quiet"
        commands = {
            "group": f"instance-groups managed delete {name} --project {cloud.project} --zone {cloud.zone} --quiet",
            "policy": f"resource-policies delete {name} {region}",
            "template": f"instance-templates delete {name} {region}",
        }
        self.delete_command = "; ".join(
            f"gcloud compute {command}" for part, command in commands.items() if part in self._parts
        )
        self.new_attempt()

    @staticmethod
    def preview(config: LaunchConfig) -> dict:
        return bodies(config, "dry-run")

    def new_attempt(self) -> None:
        self._attempt = secrets.token_hex(4)
        self._request_ids: dict[str, str] = {}
        self._operation: _Operation | None = None  # that has not ended
        self._failure: CloudError | None = None  # of the last operation that has created a part
        self._lost_checks = 0

    def find(self) -> Resource | None:
        self._follow_operation()
        self._resources = {
            part: get(client.get, request=self._named(part)) for part, client in self._clients.items()
        }
        if not any(self._resources.values()) and self._operation is None:
            return None
        conflict = self._conflict()
        # After the group has been deleted, the hosts' reports say whether the training has ended.
        attempt = self._of_host(ATTEMPT) if self._resources["group"] is None and conflict is None else ""
        ended = bool(attempt and self._reports.exits(attempt))
        creates = self._operation is not None and self._operation.creates
        return Resource(
            # The same for all of the run's: an attempt's parts are created after those of the last one are deleted.
            identity="" if conflict is None else "another",
            deleting=self._operation is not None and not creates,
            creating=creates,
            complete=ended or (all(self._resources.values()) and not creates and self._failure is None),
            conflict=conflict,
        )

    def request(self) -> bool:
        """Creates the next missing part.

        Raises:
            CloudError: If the operation of the last part has failed for good.
            UnansweredError: If it has failed because of a lack of capacity. The next call creates the part again.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        part = next(part for part in self._parts if self._resources[part] is None)
        kind = _KINDS[part]
        body = bodies(self._config, self._of_host(ATTEMPT) or self._attempt)[part]
        # The API executes the requests of an id only once.
        request = self._place(part) | {
            f"{kind.noun}_resource": kind.message.from_json(json.dumps(body)),
            "request_id": self._request_ids.setdefault(part, str(uuid.uuid4())),
        }
        operation = create(self._clients[part].insert_unary, request=request)
        if operation is None:
            return False
        self._operation = _Operation(part, operation.name, creates=True)
        return True

    def delete(self) -> None:
        """Starts to delete the first part that does not need the others; does nothing if it is gone."""
        if self._operation is not None and self._resources[self._operation.part] is None:
            return  # it is still being created, and needs the other parts
        part = next(part for part in reversed(self._parts) if self._resources[part] is not None)
        try:
            operation = get(self._clients[part].delete_unary, request=self._named(part))
        except RefusedError as error:
            # Being deleted by another request, or still used by a part whose deletion has not ended.
            if error.code not in (400, 409):
                raise
            if _IN_USE in error.reasons:
                self._count_deletion(str(error))
            return
        self._operation = operation and _Operation(part, operation.name, creates=False)

    def state(self) -> State:
        group = self._resources["group"]
        instances = self._instances() if group is not None else []
        is_preempted = group is None or any(
            each.instance_status in TAKEN_STATUSES or each.current_action in TAKEN_ACTIONS
            for each in instances
        )
        size = self._config.cloud.hosts
        running = sum(
            each.instance_status == "RUNNING" and each.current_action not in CREATING for each in instances
        )
        if not is_preempted and running < size:
            errors = _errors(group, instances)
            for error in errors:
                if not _is_transient(error):
                    return State("failed", f"the request for a TPU failed: {_describe([error])}")
            # A group that waits for all hosts at once may list none.
            waiting = errors or _is_busy(group) or any(each.current_action in CREATING for each in instances)
            self._lost_checks = 0 if waiting else self._lost_checks + 1
            if self._lost_checks < _LOST_CHECKS:
                reason = f": {_describe(errors[:1])}" if errors else ""
                return State("waiting", f"{running} of {size} hosts are running{reason}")
            is_preempted = True
        self._lost_checks = 0
        return self._reports.state(self._of_host(ATTEMPT), preempted=is_preempted)

    def _conflict(self) -> str | None:
        """Returns why a part is not the run's, or has other options; None if all are the run's."""
        resources = [part for part in self._resources.values() if part is not None]
        if any(part.description.rpartition(" ")[0] != owner(self._config) for part in resources):
            return f"not for {self._config.output_dir}; choose another --cloud.name"
        if all(part.description == description(self._config) for part in resources):
            return None
        # Only the template has room for the options.
        named = self._resources["template"] and conflict_of(
            self._config, self._of_host(OPTIONS), self.delete_command
        )
        return named or f"with other options. Use the same options, or delete it: {self.delete_command}"

    def _of_host(self, key: str) -> str:
        """Returns a value in the hosts' metadata; empty if there is none."""
        template = self._resources["template"]
        items = template.properties.metadata.items if template is not None else []
        return next((item.value for item in items if item.key == key), "")

    def _instances(self) -> list[compute_v1.ManagedInstance]:
        group = self._clients["group"]
        return (
            get(
                lambda **arguments: list(group.list_managed_instances(**arguments)),
                request=self._named("group"),
            )
            or []
        )

    def _place(self, part: str) -> dict[str, str]:
        cloud = self._config.cloud
        place = {"zone": cloud.zone} if _KINDS[part].zonal else {"region": cloud.region}
        return {"project": cloud.project} | place

    def _named(self, part: str) -> dict[str, str]:
        return self._place(part) | {_KINDS[part].noun: self._config.name}

    def _follow_operation(self) -> None:
        """Checks whether the operation has ended, and keeps its failure."""
        if self._operation is None:
            return
        part, name, creates = self._operation
        client = self._operations[_KINDS[part].zonal]
        operation = get(client.get, request=self._place(part) | {"operation": name})
        if operation is not None and operation.status != compute_v1.Operation.Status.DONE:
            return
        self._operation = None
        errors = operation.error.errors if operation is not None else []
        if not creates:
            self._count_deletion(_describe(errors))
        elif errors:
            del self._request_ids[part]  # so that the next request is a new one
            kind = UnansweredError if all(map(_is_transient, errors)) else CloudError
            self._failure = kind(f"{self._config.name}: the request for a TPU failed: {_describe(errors)}")

    def _count_deletion(self, error: str) -> None:
        """Counts a deletion that has ended. Raises RefusedError if too many have failed."""
        self._failed_deletions = self._failed_deletions + 1 if error else 0
        if self._failed_deletions >= _MAX_FAILED_DELETIONS:
            raise RefusedError(f"{self._config.name}: cannot be deleted: {error}", 400)


def _is_busy(group: compute_v1.InstanceGroupManager) -> bool:
    status = group.status
    return status.bulk_instance_operation.in_progress or ("is_stable" in status and not status.is_stable)


def _errors(
    group: compute_v1.InstanceGroupManager, instances: Sequence[compute_v1.ManagedInstance]
) -> list[Any]:
    """Returns why the group has not created its instances: objects with `code` and `message`."""
    missing = [each for each in instances if each.instance_status != "RUNNING"]
    return [
        *group.status.bulk_instance_operation.last_progress_check.error.errors,
        *(error for each in missing for error in each.last_attempt.errors.errors),
    ]


def _is_transient(error: Any) -> bool:
    return any(part in error.code for part in _TRANSIENT)


def _describe(errors: Sequence[Any]) -> str:
    return "; ".join(f"{each.code or 'no code'}: {each.message or 'no reason given'}" for each in errors)
