"""Creates, watches and deletes a TPU of Compute Engine; group_requests.py says what it consists of."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from tpu_trainer.cloud.api import Api, RefusedError, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.differences import differences
from tpu_trainer.cloud.exits import ContainerExit
from tpu_trainer.cloud.group_requests import compared, owner, requests
from tpu_trainer.cloud.host_reports import ATTEMPT, reported_exits
from tpu_trainer.cloud.slices import Slice
from tpu_trainer.cloud.tpu_resource import Phase, TpuResource
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
_OPERATION_CHECKS, _OPERATION_SECONDS = 30, 2
_MAX_FAILED_DELETIONS = 10
"""Of a part, which is in use for a moment after the group has been deleted."""
_IN_USE = "resourceInUseByAnotherResource"


class InstanceGroup(TpuResource):
    """The group of a run, with its template and policy. The methods raise the errors of Api.call."""

    noun = "managed instance group, instance template or resource policy"
    in_parts = True

    def __init__(self, api: Api, config: LaunchConfig, pause: Callable[[float], Any] = time.sleep) -> None:
        self._api = api
        self._config = config
        self._pause = pause
        self._base = f"{api.compute}/compute/v1"
        self._deletion: str | None = None  # the operation of the last DELETE
        self._failed_deletions = 0  # since one has succeeded
        self.new_attempt()
        cloud, name = config.cloud, config.name
        region = f"--project {cloud.project} --region {cloud.region} --quiet"
        commands = {
            "group": f"instance-groups managed delete {name} --project {cloud.project} --zone {cloud.zone} --quiet",
            "policy": f"resource-policies delete {name} {region}",
            "template": f"instance-templates delete {name} {region}",
        }
        self._ours = requests(config, "")
        self._parts = [part for part in commands if part in self._ours]
        self.delete_command = "; ".join(f"gcloud compute {commands[part]}" for part in self._parts)
        """Shell commands that delete the group, the policy and the template."""

    def new_attempt(self) -> None:
        """Lets `create` request another TPU than before."""
        self._attempt = secrets.token_hex(4)
        self._request_ids: dict[str, str] = {}
        self._lost = 0

    def get(self) -> dict | None:
        """Returns the parts that exist, by their names in `requests`; None if there are none.

        `instances`: the group's; `reported`: whether hosts have reported; `deleting`: whether this object's deletion of
        a part is under way.
        """
        found: dict[str, Any] = {
            part: self._api.call("GET", self._url(part), missing_ok=True) for part in self._parts
        }
        if not any(found.values()):
            self._deletion = None
            return None
        if self._deletion is not None:
            operation = self._operation(self._deletion)
            if operation.get("status") in (None, "DONE"):
                self._deletion = None
                self._count_deletion("; ".join(map(_describe, _errors_of(operation))))
        found["deleting"] = self._deletion is not None
        found["instances"] = self._instances() if found["group"] else []
        found["reported"] = not found["group"] and bool(self.exits(found))
        return found

    def is_complete(self, found: dict) -> bool:
        """Whether nothing is left to create: all parts exist, or the hosts have ended."""
        return all(found[part] for part in self._parts) or found["reported"]

    def is_deleting(self, found: dict) -> bool:
        """Whether this object's deletion of a part is under way."""
        return found["deleting"]

    def identity(self, found: dict) -> str:
        """The same for all of the run's: an attempt's parts are created after those of the last one are deleted."""
        return "" if self.conflict(found) is None else "another"

    def conflict(self, found: dict) -> str | None:
        """Returns why a part of `found` is not the run's, or has other options; None if all are the run's."""
        for part in self._parts:
            if found[part] is None:
                continue
            description = found[part].get("description", "")
            if description.rpartition(" ")[0] != owner(self._config):
                return f"not for {self._config.output_dir}; choose another --cloud.name"
            if description != self._ours[part][1]["description"]:
                there = {part: found[part] for part in self._parts if found[part] is not None}
                here = {part: self._ours[part][1] for part in there}
                different = differences(compared(here), compared(there))
                return (
                    f"with other options, or of another release of the trainer{different and f': {different}'}. Use "
                    f"the same ones, or delete it: {self.delete_command}"
                )
        return None

    def create(self) -> bool:
        """Creates the parts that are missing, one after the other. Returns False if a part exists meanwhile.

        Raises:
            CloudError: If an operation fails for good.
            UnansweredError: If an operation does not end, or fails because of a lack of capacity.
        """
        found = self.get() or dict.fromkeys(self._parts)
        if any(found.values()) and self.conflict(found) is not None:
            return False
        attempt = (found["template"] and self._metadata(found).get(ATTEMPT)) or self._attempt
        for part, (path, body) in requests(self._config, attempt).items():
            if found[part] is not None:
                continue
            # The API executes the requests of an id only once.
            query = urlencode({"requestId": self._request_ids.setdefault(part, str(uuid.uuid4()))})
            try:
                operation = self._api.call("POST", f"{self._base}/{path}?{query}", body)
            except RefusedError as error:
                if error.code != 409:
                    raise
                return False
            self._finish(part, operation)
        return True

    def delete(self, found: dict) -> None:
        """Starts to delete the first part of `found` that does not need the others; does nothing if it is gone."""
        part = next(part for part in self._parts if found[part] is not None)
        try:
            operation = self._api.call("DELETE", self._url(part), missing_ok=True)
        except RefusedError as error:
            # Being deleted by another request, or still used by a part whose deletion has not ended.
            if error.code not in (400, 409):
                raise
            if _IN_USE in error.reasons:
                self._count_deletion(str(error))
            return
        self._deletion = operation and operation.get("name") and self._operation_url(part, operation["name"])

    def _count_deletion(self, error: str) -> None:
        """Counts a deletion that has ended. Raises RefusedError if too many have failed."""
        self._failed_deletions = self._failed_deletions + 1 if error else 0
        if self._failed_deletions >= _MAX_FAILED_DELETIONS:
            raise RefusedError(f"{self._config.name}: cannot be deleted: {error}", 400)

    def phase(self, found: dict) -> Phase:
        """Returns how far the TPU is."""
        group, instances = found["group"], found["instances"]
        if group is None:
            return Phase("preempted")
        if any(
            each.get("instanceStatus") in TAKEN_STATUSES or each.get("currentAction") in TAKEN_ACTIONS
            for each in instances
        ):
            return Phase("preempted")
        size = Slice.parse(self._config.cloud.accelerator_type, self._config.cloud.topology).hosts
        running = sum(
            each.get("instanceStatus") == "RUNNING" and each.get("currentAction") not in CREATING
            for each in instances
        )
        if running == size:
            self._lost = 0
            return Phase("active")
        errors = _errors(group, instances)
        for error in errors:
            if not any(part in error.get("code", "") for part in _TRANSIENT):
                return Phase("failed", _describe(error))
        # A group that waits for all hosts at once may list none.
        waiting = (
            errors or _is_busy(group) or any(each.get("currentAction") in CREATING for each in instances)
        )
        self._lost = 0 if waiting else self._lost + 1
        if self._lost >= _LOST_CHECKS:
            return Phase("preempted")
        reason = f": {_describe(errors[0])}" if errors else ""
        return Phase("waiting", f"{running} of {size} hosts are running{reason}")

    def exits(self, found: dict) -> list[ContainerExit]:
        """Returns the container exits that the hosts have reported, by host number."""
        attempt = found["template"] and self._metadata(found).get(ATTEMPT)
        return reported_exits(self._api, self._config, attempt) if attempt else []

    def _metadata(self, found: dict) -> dict[str, str]:
        items = found["template"]["properties"].get("metadata", {}).get("items", [])
        return {item["key"]: item.get("value", "") for item in items}

    def _url(self, part: str) -> str:
        path, body = self._ours[part]
        return f"{self._base}/{path}/{body['name']}"

    def _instances(self) -> list[dict]:
        instances: list[dict] = []
        token = ""
        while True:
            query = urlencode({"pageToken": token} if token else {})
            url = f"{self._url('group')}/listManagedInstances{'?' if query else ''}{query}"
            page = self._api.call("POST", url, missing_ok=True) or {}
            instances += page.get("managedInstances", [])
            token = page.get("nextPageToken", "")
            if not token:
                return instances

    def _operation_url(self, part: str, name: str) -> str:
        place = self._ours[part][0].rpartition("/")[0]
        return f"{self._base}/{place}/operations/{name}"

    def _operation(self, url: str) -> dict:
        return self._api.call("GET", url, missing_ok=True) or {}

    def _finish(self, part: str, operation: dict) -> None:
        """Waits for an operation that creates a part, and raises the errors of `create`."""
        name, url = operation.get("name"), self._operation_url(part, operation.get("name", ""))
        for _ in range(_OPERATION_CHECKS):
            if operation.get("status") == "DONE":
                break
            self._pause(_OPERATION_SECONDS)
            operation = self._operation(url)
        else:
            raise UnansweredError(f"the operation {name} has not ended")
        errors = _errors_of(operation)
        if not errors:
            return
        del self._request_ids[part]  # so that the next request is a new one
        text = "; ".join(map(_describe, errors))
        transient = all(any(part in error.get("code", "") for part in _TRANSIENT) for error in errors)
        raise (UnansweredError if transient else CloudError)(
            f"{self._config.name}: the request for a TPU failed: {text}"
        )


def _errors_of(operation: dict) -> list[dict]:
    return operation.get("error", {}).get("errors", [])


def _bulk(group: dict) -> dict:
    return group.get("status", {}).get("bulkInstanceOperation", {})


def _is_busy(group: dict) -> bool:
    return _bulk(group).get("inProgress", False) or not group.get("status", {}).get("isStable", True)


def _errors(group: dict, instances: list[dict]) -> list[dict]:
    """Returns why the group has not created its instances: {"code", "message"} each."""
    missing = [each for each in instances if each.get("instanceStatus") != "RUNNING"]
    places = [_bulk(group).get("lastProgressCheck", {}).get("error", {})]
    places += [each.get("lastAttempt", {}).get("errors", {}) for each in missing]
    return [error for place in places for error in place.get("errors", [])]


def _describe(error: dict) -> str:
    return f"{error.get('code', 'no code')}: {error.get('message', 'no reason given')}"
