"""A local stand-in for the metadata server of Google Cloud's machines. It issues their credentials."""

from __future__ import annotations

from collections.abc import Mapping

from tests.google_cloud.loopback import Loopback, Request, Response

HOST, ADDRESS = "metadata.google.internal", "169.254.169.254"
TOKEN = "stand-in"
_HEADER = {"Metadata-Flavor": "Google"}
_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"


class MetadataServer(Loopback):
    """The stand-in.

    Args:
        project: The machines' project.
        account: Their service account.
        address: The loopback address to listen on.

    Attributes:
        attributes: The metadata of the machine itself, by name.
    """

    def __init__(self, project: str, account: str, address: str):
        super().__init__(port=80, address=address)
        self.attributes: Mapping[str, str] = {}
        self._account = {"email": account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        self._texts = {"project/project-id": project, "instance/zone": "projects/1/zones/europe-west4-b"}

    def serve(self, request: Request) -> Response:
        if request.method != "GET" or request.headers.get("Metadata-Flavor") != "Google":
            return _text("Missing Metadata-Flavor:Google header.", 403)
        name = request.path.removeprefix(_ROOT)
        attribute = self.attributes.get(name.removeprefix("instance/attributes/"))
        if name == "/":
            return _text("computeMetadata/\n")
        if name == _ACCOUNT:
            return _json(self._account | {"aliases": ["default"]})
        if name in (f"{_ACCOUNT}token", f"{_ACCOUNT.replace('default', self._account['email'])}token"):
            return _json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        if name in self._texts:
            return _text(self._texts[name])
        if name.startswith("instance/attributes/") and attribute is not None:
            return _text(attribute)
        return _text("not found", 404)


def _text(text: str, status: int = 200) -> Response:
    return Response(status, text.encode(), _HEADER | {"Content-Type": "application/text"})


def _json(data: dict) -> Response:
    response = Response.of_json(data)
    return Response(response.status, response.body, {**response.headers, **_HEADER})
