"""A local stand-in for Cloud Storage, for the clients of Beam (google-cloud-storage) and TensorFlow.

Over HTTP or TLS it serves buckets, paged listings, ranged reads, uploads (media, multipart, resumable), copy, rewrite,
delete, batches of these, and a token for a fictitious service account. `Faults` configures intentional faults. Objects
are in memory. Needs only what both programs' environments have.
"""

from __future__ import annotations

import base64
import email.parser
import email.policy
import hashlib
import itertools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from urllib.parse import quote, unquote

import google_crc32c

from tests.google_cloud.loopback import Loopback, Request, Response

_UPLOAD_CHUNK = 256 << 10  # Cloud Storage keeps whole chunks of an interrupted upload


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Intentional faults. A period of 0 means never."""

    error_every: int = 0
    """Every n-th request fails with 429 or 503, in turn, without an effect. Parts of a batch count as requests."""
    cut_upload_every: int = 0
    """Every n-th piece of a resumable upload loses its connection after half of the bytes."""
    cut_download_every: int = 0
    """Every n-th read of an object loses its connection after half of the bytes."""


@dataclass(frozen=True)
class Blob:
    """An object and its metadata."""

    data: bytes
    content_type: str
    generation: int
    creation_time: float

    def metadata(self, bucket: str, name: str) -> dict:
        timestamp = datetime.fromtimestamp(self.creation_time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self.generation}",
            "name": name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "size": str(len(self.data)),
            "md5Hash": base64.b64encode(hashlib.md5(self.data).digest()).decode(),
            "etag": f"e{self.generation}",
            "timeCreated": timestamp,
            "updated": timestamp,
            "crc32c": self.crc32c,
        }

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()


@dataclass
class _Upload:
    bucket: str
    name: str
    content_type: str
    query: Mapping[str, str]
    received: bytearray = field(default_factory=bytearray)
    final_response: Response | None = None


class Gcs(Loopback):
    """The stand-in.

    Args:
        buckets: The existing buckets.
        faults: Intentional faults.
        page_size: Maximum number of entries in a page of a listing.
        on_request: Called with (method, path) before each request. If it returns a response, that is the answer. If it
            raises a ConnectionError, the connection is closed without an answer.
        port: See `Loopback`.
        tls: See `Loopback`.

    Attributes:
        objects: The objects by (bucket, name).
        requests: "METHOD path" of all requests so far, including failed ones.
        failures: Number of intentionally failed requests.
        bytes_read: Number of object bytes sent.
    """

    def __init__(
        self,
        *buckets: str,
        faults: Faults | None = None,
        page_size: int = 1000,
        on_request: Callable[[str, str], Response | None] | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ):
        super().__init__(port, tls)
        self.objects: dict[tuple[str, str], Blob] = {}
        self.requests: list[str] = []
        self.failures = 0
        self.bytes_read = 0
        self.faults = faults or Faults()
        self.on_request = on_request
        self._buckets = set(buckets)
        self._page_size = page_size
        self._uploads: dict[str, _Upload] = {}
        self._counts = {name: itertools.count(1) for name in ("request", "upload", "download", "generation")}
        self._lock = threading.RLock()

    def put(self, url: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        """Creates the object gs://bucket/name."""
        bucket, name = url.removeprefix("gs://").split("/", 1)
        with self._lock:
            blob = Blob(bytes(data), content_type, next(self._counts["generation"]), time.time())
            self.objects[bucket, name] = blob

    def read(self, url: str) -> bytes:
        """Returns the bytes of the object gs://bucket/name."""
        bucket, name = url.removeprefix("gs://").split("/", 1)
        return self.objects[bucket, name].data

    def age(self, url: str, seconds: float) -> None:
        """Moves the creation time of an object back."""
        bucket, name = url.removeprefix("gs://").split("/", 1)
        with self._lock:
            blob = self.objects[bucket, name]
            self.objects[bucket, name] = replace(blob, creation_time=blob.creation_time - seconds)

    def objects_below(self, url: str) -> dict[str, bytes]:
        """Returns the objects below gs://bucket/folder/ by their names relative to it."""
        folder = url.rstrip("/") + "/"
        with self._lock:
            blobs_by_url = {f"gs://{bucket}/{name}": blob for (bucket, name), blob in self.objects.items()}
        return {
            path.removeprefix(folder): blob.data
            for path, blob in blobs_by_url.items()
            if path.startswith(folder)
        }

    def _fails(self, count: str, interval: int) -> bool:
        """Counts a request and returns whether it is an `interval`-th one, which must fail."""
        with self._lock:
            is_failure = next(self._counts[count]) % interval == 0 if interval else False
            self.failures += is_failure
        return is_failure

    def serve(self, request: Request) -> Response:
        """Answers a request, either with an intentional error or like Cloud Storage."""
        self.requests.append(f"{request.method} {request.path}")
        given_response = self.on_request(request.method, request.path) if self.on_request else None
        if given_response:
            return given_response
        if self._fails("request", self.faults.error_every):
            return Response.error(429 if self.failures % 2 else 503, "an intentional fault")
        for pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, f"{request.method} {request.path}")
            if match:
                with self._lock:
                    return answer(self, request, *map(unquote, match.groups()))
        return Response.error(501, f"{request.method} {request.path}: the stand-in has no such call")

    # The handlers of requests. Their arguments are the parts of the path.

    def _token(self, request: Request) -> Response:
        return Response.of_json({"access_token": "stand-in", "expires_in": 3600, "token_type": "Bearer"})

    def _batch(self, request: Request) -> Response:
        head = f"Content-Type: {request.headers['Content-Type']}\n\n".encode()
        parts = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
        answers = []
        for part in parts.iter_parts():
            lines, _, body = part.get_payload(decode=True).replace(b"\r\n", b"\n").partition(b"\n\n")
            method, url, _ = lines.split(b"\n", 1)[0].decode().split(" ")
            response = self.serve(Request.parse(method, url, {}, body))
            answers.append(
                b"--part\r\nContent-Type: application/http\r\n\r\n"
                + f"HTTP/1.1 {response.status} -\r\nContent-Type: application/json\r\n\r\n".encode()
                + response.body
                + b"\r\n"
            )
        body = b"".join(answers) + b"--part--\r\n"
        return Response(200, body, {"Content-Type": "multipart/mixed; boundary=part"})

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        if bucket not in self._buckets:
            return Response.error(404, f"no bucket {bucket}")
        fields = {"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "EUROPE-WEST4"}
        return Response.of_json(
            fields | {"projectNumber": "1", "softDeletePolicy": {"retentionDurationSeconds": "0"}}
        )

    def _list(self, request: Request, bucket: str) -> Response:
        if bucket not in self._buckets:
            return Response.error(404, f"no bucket {bucket}")
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        entries: dict[str, dict | None] = {}  # None for a "folder"
        for (blob_bucket, name), blob in self.objects.items():
            if blob_bucket == bucket and name.startswith(prefix):
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                entries[name if cut < 0 else name[: cut + len(delimiter)]] = (
                    None if cut >= 0 else blob.metadata(bucket, name)
                )
        after = request.query.get("pageToken", "")
        names = sorted(name for name in entries if name > after)
        page = names[: min(self._page_size, int(request.query.get("maxResults", self._page_size)))]
        listing = {
            "kind": "storage#objects",
            "items": [entries[name] for name in page if entries[name]],
            "prefixes": [name for name in page if not entries[name]],
        }
        return Response.of_json(listing | ({"nextPageToken": page[-1]} if len(page) < len(names) else {}))

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        if (bucket, name) not in self.objects:
            return Response.error(404, f"no object gs://{bucket}/{name}")
        if error := self._precondition_error(request.query, bucket, name):
            return error
        if request.query.get("alt") == "media":
            return self._read(request, bucket, name)
        return Response.of_json(self.objects[bucket, name].metadata(bucket, name))

    def _read(self, request: Request, bucket: str, name: str) -> Response:
        if (bucket, name) not in self.objects:
            return Response.error(404, f"no object gs://{bucket}/{name}")
        blob = self.objects[bucket, name]
        if request.query.get("generation", str(blob.generation)) != str(blob.generation):
            return Response.error(404, f"no such generation of gs://{bucket}/{name}")
        headers = {"Content-Type": blob.content_type, "X-Goog-Generation": str(blob.generation)}
        if google_crc32c:
            headers["X-Goog-Hash"] = f"crc32c={blob.crc32c}"
        range_header = request.headers.get("Range", "")
        if suffix := re.fullmatch(r"bytes=-(\d+)", range_header):
            range_header = f"bytes={max(len(blob.data) - int(suffix[1]), 0)}-"
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", range_header)
        if not span:
            self.bytes_read += len(blob.data)
            return Response(200, blob.data, headers, self._fails("download", self.faults.cut_download_every))
        first, size = int(span[1]), len(blob.data)
        last_byte = min(int(span[2] or size - 1), size - 1)
        if first >= size:
            return Response(416, b"", {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {first}-{last_byte}/{size}"
        cut = self._fails("download", self.faults.cut_download_every)
        self.bytes_read += last_byte + 1 - first
        return Response(206, blob.data[first : last_byte + 1], headers, cut)

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        error = self._precondition_error(request.query, bucket, name)
        if error or (bucket, name) not in self.objects:
            return error or Response.error(404, f"no object gs://{bucket}/{name}")
        del self.objects[bucket, name]
        return Response(204)

    def _copy(
        self, request: Request, bucket: str, name: str, method: str, to_bucket: str, to_name: str
    ) -> Response:
        if (bucket, name) not in self.objects or to_bucket not in self._buckets:
            return Response.error(404, f"no object gs://{bucket}/{name}, or no bucket {to_bucket}")
        blob = self.objects[bucket, name]
        response = self._store(request.query, to_bucket, to_name, blob.data, blob.content_type)
        if method == "copyTo" or response.status != 200:
            return response
        sizes = dict.fromkeys(("totalBytesRewritten", "objectSize"), str(len(blob.data)))
        return Response.of_json(
            {"kind": "storage#rewriteResponse", "done": True, **sizes, "resource": json.loads(response.body)}
        )

    def _upload(self, request: Request, bucket: str) -> Response:
        if bucket not in self._buckets:
            return Response.error(404, f"no bucket {bucket}")
        kind = request.query["uploadType"]
        if kind == "media":
            content_type = request.headers.get("Content-Type", "application/octet-stream")
            return self._store(request.query, bucket, request.query["name"], request.body, content_type)
        if kind == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', request.headers["Content-Type"])[1].encode()
            metadata_part, content = request.body.split(b"--" + boundary)[1:3]
            fields = json.loads(metadata_part.partition(b"\r\n\r\n")[2])
            head, _, data = content.partition(b"\r\n\r\n")
            content_type = head.decode().partition(":")[2].strip()
            return self._store(
                request.query, bucket, fields["name"], data.removesuffix(b"\r\n"), content_type
            )
        fields = json.loads(request.body or b"{}")
        name = request.query.get("name") or fields["name"]
        content_type = request.headers.get("X-Upload-Content-Type", "application/octet-stream")
        number = str(next(self._counts["generation"]))
        self._uploads[number] = _Upload(bucket, name, content_type, request.query)
        return Response(
            200, b"", {"Location": f"http{self._of_host(request)}/resumable/{number}/{quote(name, safe='')}"}
        )

    def _of_host(self, request: Request) -> str:
        return f"{'s' if self.url.startswith('https') else ''}://{request.headers['Host']}"

    def _resume(self, request: Request, number: str) -> Response:
        """Handles a piece of a resumable upload, or a query of its progress."""
        upload = self._uploads[number]
        if request.method == "DELETE":
            del self._uploads[number]
            return Response(499)
        if upload.final_response:
            return upload.final_response
        span = re.fullmatch(
            r"bytes (?:\*|(\d+)-\d+)/(\*|\d+)", request.headers.get("Content-Range", "bytes */*")
        )
        first = int(span[1] or 0) if request.body else len(upload.received)
        if first > len(upload.received):
            return Response.error(
                400, f"the piece starts at byte {first}, but only {len(upload.received)} bytes are there"
            )
        # Skip bytes that have been received: a piece may be repeated or overlap the previous one.
        upload.received += request.body[len(upload.received) - first :]
        if span[2] != "*" and len(upload.received) == int(span[2]):
            data = bytes(upload.received)
            upload.final_response = self._store(
                upload.query, upload.bucket, upload.name, data, upload.content_type
            )
            return upload.final_response
        return Response(308, b"", {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {})

    def take(self, method: str, path: str, size: int) -> int:
        piece = method == "PUT" and path.startswith("/resumable/") and size > 0
        return size // 2 if piece and self._fails("upload", self.faults.cut_upload_every) else size

    def cut_off(self, request: Request) -> None:
        """Keeps whole chunks of 256 KiB of an interrupted upload."""
        number = request.path.split("/")[2]
        kept_bytes = len(request.body) // _UPLOAD_CHUNK * _UPLOAD_CHUNK
        part = Request(request.method, request.path, {}, request.headers, request.body[:kept_bytes])
        with self._lock:
            if kept_bytes and number in self._uploads:
                self._resume(part, number)

    def _precondition_error(self, query: Mapping[str, str], bucket: str, name: str) -> Response | None:
        expected = query.get("ifGenerationMatch")
        actual = self.objects[bucket, name].generation if (bucket, name) in self.objects else 0
        return (
            None
            if expected in (None, str(actual))
            else Response.error(412, f"generation {actual}, not {expected}")
        )

    def _store(
        self, query: Mapping[str, str], bucket: str, name: str, data: bytes, content_type: str
    ) -> Response:
        error = self._precondition_error(query, bucket, name)
        if error:
            return error
        self.put(f"gs://{bucket}/{name}", data, content_type)
        return Response.of_json(self.objects[bucket, name].metadata(bucket, name))


_OBJECT = r"/b/([^/]+)/o/([^/]+)"
_ROUTES: list[tuple[str, Callable[..., Response]]] = [
    (r"POST /token", Gcs._token),
    (r"POST /batch/storage/v1", Gcs._batch),
    (r"POST /upload/storage/v1/b/([^/]+)/o", Gcs._upload),
    (r"(?:PUT|DELETE) /resumable/(\d+)/.+", Gcs._resume),
    (r"GET (?:/download)?/storage/v1" + _OBJECT, Gcs._get),
    (r"DELETE /storage/v1" + _OBJECT, Gcs._delete),
    (r"POST /storage/v1" + _OBJECT + "/(copyTo|rewriteTo)" + _OBJECT, Gcs._copy),
    (r"GET /storage/v1/b/([^/]+)/o", Gcs._list),
    (r"GET /storage/v1/b/([^/]+)", Gcs._get_bucket),
    (r"GET /([^/]+)/(.+)", Gcs._read),  # a read by the XML API, as in TensorFlow's client
]
