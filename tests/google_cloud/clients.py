"""Redirects the Google Cloud clients of this process and its children to the stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from apache_beam.internal.gcp import auth
from apache_beam.io.gcp import gcsio_retry
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud.storage import retry

from beam_pipeline.support import buckets
from tests.google_cloud.loopback import Loopback


def redirect_google_cloud(server: Loopback, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirects gs:// to a local server, with credentials of a fictitious account, which are written to `folder`.

    Nothing leaves the machine: other https requests fail at a closed port. Retries in this process wait milliseconds
    instead of seconds.
    """
    monkeypatch.setenv("HTTPS_PROXY", "http://localhost:9")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setenv(
        "GOOGLE_APPLICATION_CREDENTIALS", str(_write_account(folder / "account.json", server.url))
    )
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
    buckets._client.cache_clear()  # the cached client uses the previous stand-in
    for policy in (retry.DEFAULT_RETRY, gcsio_retry.DEFAULT_RETRY_WITH_THROTTLING_COUNTER):
        monkeypatch.setattr(policy, "_initial", 0.01)


def _write_account(path: Path, url: str) -> Path:
    """Writes a service account's key. The server at `url` issues its tokens.

    Without credentials, clients would search for a metadata server for 20 s.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "stand-in",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "tests@stand-in.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps(account))
    return path
