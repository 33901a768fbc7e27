"""The names in the staging folder, which is in the output folder and has a folder for each run."""

from __future__ import annotations

from beam_pipeline.support import filesystem
from beam_pipeline.support.run_folder import run_folder_name

STAGING = "_staging"
FINISHED = "finished"
WRITTEN = "written"
TEMPORARY = "temporary"  # holds files until they are complete


def staging_folder(output: str, fingerprint: str) -> str:
    """Returns the folder for everything that is deleted when the dataset with this fingerprint is finished.

    Its content is a function of the fingerprint: concurrent attempts write the same bytes, and runs with different
    fingerprints share nothing.
    """
    return filesystem.join(output, STAGING, run_folder_name(fingerprint))
