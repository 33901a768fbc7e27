"""A CompileProcess that compiles without end, for test_mesh_search.py. Prints the process's id."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check import compile_process

_serve = compile_process._serve


def serve(pipe: Connection, topology: Topology) -> None:
    """Like compile_process._serve, but a report takes ten minutes."""
    compile_process._report = lambda *arguments: time.sleep(600)
    _serve(pipe, topology)


def main() -> None:
    compile_process._serve = serve
    process = compile_process.CompileProcess(Topology.parse("v5e:1x1"))
    process._start()
    print(process._process.pid, flush=True)
    process.report(CompileCheckConfig())


if __name__ == "__main__":
    main()
