"""The pipeline's command line, with limits by which a small input is divided as a large one.

Without them, the clusters of near-duplicates in less than 16 GB are found without rounds.
"""

from __future__ import annotations

import sys

from beam_pipeline.__main__ import main
from beam_pipeline.steps import near_clusters, near_duplicates

LIMITS = (
    (near_duplicates, "_BYTES_PER_BUCKET"),
    (near_clusters, "_BYTES_PER_PARTITION"),
    (near_clusters, "_BYTES_WITHOUT_ROUNDS"),
)
BYTES = 1 << 18

if __name__ == "__main__":
    for module, name in LIMITS:
        setattr(module, name, BYTES)
    sys.exit(main())
