"""Lowers programs in the first of the processes that train together."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache, packed, unpacked
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.devices.pjrt.stablehlo import Lowered, Program

_SAME_RELEASES = "install the same releases of all packages on all hosts"


class Lowering:
    """Gives all processes the same lowered programs: names in what is lowered depend on the process's past."""

    def __init__(self, cache: LoweringCache, mesh: DeviceMesh, peers: Peers | None = None) -> None:
        """
        Args:
            cache: Of lowered programs.
            mesh: Its devices send the program to the other processes.
            peers: The processes; None: only this one.
        """
        self._cache = cache
        self._mesh = mesh
        self._peers = peers or Peers()

    def lower(self, name: str, program: Program, variables: Sequence[str] = ()) -> Lowered:
        """Lowers a program, or reads it from the cache. All processes must call it.

        Args:
            name: What the program is to do, for messages.
            program: The program.
            variables: Names of the variables that it captures.

        Raises:
            UsageError: If the processes have different programs.
        """
        if self._peers.count == 1:
            return self._cache.lower(program)
        values = {"": self._cache.key(program), "'s arguments": zlib.crc32(json.dumps(variables).encode())}
        self._peers.check_same(
            {f"the program to {name}{part}": value for part, value in values.items()}, remedy=_SAME_RELEASES
        )
        data = packed(self._cache.lower(program)) if self._peers.is_first else b""
        self._peers.gather("lowered")  # takes long: devices would not wait so long for each other
        return unpacked(self._mesh.from_first(data))
