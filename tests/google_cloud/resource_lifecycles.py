"""Base class of the stand-ins for services with named resources: one resource at a time, with a given lifecycle."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from tests.google_cloud.loopback import Loopback


class ResourceLifecycles(Loopback):
    """A stand-in in which one resource exists at a time.

    Args:
        lifecycles: For each resource in turn, its states in the answers to successive requests for it. A function is
            called with what `before_state` returns before the next answer. The last state is repeated.
        project: The only project that the stand-in serves.
        port: See `Loopback`.
        tls: See `Loopback`.
        address: See `Loopback`.

    Attributes:
        created: The bodies of the requests that created resources.
        existing: The existing resource, or None.
    """

    def __init__(
        self,
        *lifecycles: Sequence[Any],
        project: str = "p",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        address: str = "127.0.0.1",
    ):
        super().__init__(port, tls, address)
        self._project = project
        self._lifecycles = [list(lifecycle) for lifecycle in lifecycles]
        self.created: list[dict] = []
        self.existing: dict | None = None
        self._deleting = 0  # answers until the resource that is being deleted is gone

    @property
    def resource_exists(self) -> bool:
        """Whether a resource exists that is not being deleted."""
        return self.existing is not None and not self._deleting

    def create(self, body: dict) -> None:
        """Creates the resource, as a request does."""
        self.existing = body
        self._lifecycle = self._lifecycles.pop(0)
        self._deleting = 0

    def before_state(self) -> Any:
        """Returns the argument of the functions in a lifecycle."""
        return self

    def next_state(self) -> Any:
        """Returns the resource's next state."""
        while callable(self._lifecycle[0]):
            self._lifecycle.pop(0)(self.before_state())
        return self._lifecycle.pop(0) if len(self._lifecycle) > 1 else self._lifecycle[0]

    def still_deleting(self) -> bool:
        """Whether a resource that is being deleted still exists; each call brings its end nearer."""
        self._deleting -= 1
        if not self._deleting:
            self.existing = None
        return bool(self._deleting)
