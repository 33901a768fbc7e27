"""Processes in which JAX divides the CPU into several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment(count: int) -> dict[str, str]:
    """Returns the environment variables that give a process `count` devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def run_module(name: str, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of tests/tpu_trainer on eight devices, with these environment variables added."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.tpu_trainer.{name}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | environment(8) | variables,
    )
