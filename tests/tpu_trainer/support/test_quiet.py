from __future__ import annotations

import subprocess
import sys

_COMPILE_WITH_XLA = """
from tpu_trainer.support import quiet
quiet.set_log_levels()
import tensorflow as tf
quiet.silence_abseil()
print(tf.function(lambda x: x * 2, jit_compile=True)(tf.constant(21)).numpy())
"""


def test_notices_of_tensorflow_and_abseil_are_silenced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE_WITH_XLA], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
