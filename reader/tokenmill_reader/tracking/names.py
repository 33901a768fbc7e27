"""The trackers: what they import, and whether they write to the network or to a folder."""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
from urllib.parse import urlsplit

NAMES = ("wandb", "mlflow", "trackio", "otlp")
"""The trackers. Each is a module here, and an extra of the distribution `tokenmill-reader`."""

_MODULES = {
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "trackio": ("trackio",),
    "otlp": ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http"),
}


def wandb_mode() -> str:
    """Returns WANDB_MODE; without it, online after a login (`wandb login` or WANDB_API_KEY), else offline."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host or ""):
            return "online"
    return "offline"


def writes_to_folder(name: str) -> bool:
    """Whether a tracker keeps its files in the folder of the record, since nothing names another place."""
    if name == "wandb":
        return wandb_mode() == "offline" and "WANDB_DIR" not in os.environ
    return name == "mlflow" and "MLFLOW_TRACKING_URI" not in os.environ


def problem(name: str, *, folder: str | None) -> str | None:
    """Returns why a tracker cannot be used, and the remedy; None if it can.

    Args:
        name: One of `NAMES`.
        folder: The local folder of the record; None if its files are elsewhere, such as in a bucket.
    """
    missing = [module for module in _MODULES[name] if not _is_installed(module)]
    if missing:
        return f"needs {', '.join(missing)}; install it: pip install 'tokenmill-reader[{name}]'"
    if folder is None and writes_to_folder(name):
        remedy = {
            "wandb": "log in (WANDB_API_KEY), or set WANDB_DIR to a local folder for its offline files",
            "mlflow": "set MLFLOW_TRACKING_URI to a server",
        }[name]
        return f"would write files beside the output, which is in no local folder; {remedy}"
    return None


def _is_installed(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a package that contains it
        return False
    # A folder of that name, such as the wandb/ that wandb writes, is a package without an origin.
    return spec is not None and spec.origin is not None
