"""The staging folder in the output folder: its names, and the folder of each run in it."""

from __future__ import annotations

import re

from beam_pipeline import filesystem

STAGING = "_staging"
FINISHED = "finished"
WRITTEN = "written"
TEMPORARY = "temporary"  # where files are until they are complete
RUN_FOLDER = re.compile(r"[0-9a-f]{16}")  # one for each fingerprint


def staging_folder(output: str, fingerprint: str) -> str:
    """The folder for everything that is deleted when the dataset with this fingerprint is finished.

    Its content is a function of the fingerprint, so that attempts that overlap can only write the same bytes, and runs
    with different fingerprints share nothing.
    """
    return filesystem.join(output, STAGING, fingerprint[:16])
