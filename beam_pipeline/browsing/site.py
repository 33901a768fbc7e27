"""Answers requests: from a URL to a page, whatever goes wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from beam_pipeline.browsing import document_pages, pages
from beam_pipeline.browsing.filters import BadRequest
from beam_pipeline.browsing.opened import DatasetHolder
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.views.pages import environment, read_text
from beam_pipeline.views.tracing import NotTraced
from tokenmill_reader.charts import page_style

_PACKAGE = "beam_pipeline.browsing"
_MOST_PARAMETERS = 32
_SPLIT, _NUMBER = r"([A-Za-z0-9_.]{1,100})", r"([0-9]{1,16})"

# The pages by the form of their paths, with their templates.
_PAGES: tuple[tuple[str, str, Callable[..., pages.Values]], ...] = (
    ("", "overview", pages.overview),
    ("rows", "rows", pages.rows),
    (f"row/{_SPLIT}/{_NUMBER}", "row", pages.row),
    ("documents", "documents", document_pages.documents),
    (f"document/{_SPLIT}/{_NUMBER}/{_NUMBER}", "document", document_pages.document),
    ("bad", "bad", document_pages.bad_records),
)
_STATIC = {"browse.css": "text/css", "browse.js": "text/javascript"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Response:
    """The answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Site:
    """The pages of a dataset. Several threads may use it.

    All of them are below a path that other users of the machine, and pages of other sites, cannot guess.

    Args:
        dataset: The folder of the dataset, or of one split.
        root: That path, such as `/Zk3…/`.
    """

    def __init__(self, dataset: str, root: str):
        self._holder = DatasetHolder(dataset)
        self._root = root
        self._static = {
            "browse.css": page_style() + read_text(_PACKAGE, "browse.css"),
            "browse.js": read_text(_PACKAGE, "browse.js"),
        }

    def respond(self, target: str) -> Response:
        """Returns the answer to a request for the path and query `target`."""
        try:
            whole_path, _, query = target.partition("?")
            path = whole_path.removeprefix(self._root)
            if not whole_path.startswith(self._root):
                raise pages.NotFound(
                    "There is no such page. Use the whole address that tokenmill browse prints."
                )
            if path in self._static:
                return Response(HTTPStatus.OK, f"{_STATIC[path]}; charset=utf-8", self._static[path].encode())
            return self._page(HTTPStatus.OK, *self._values(path, query))
        except pages.NotFound as error:
            return self._error(HTTPStatus.NOT_FOUND, "Not found", str(error))
        except BadRequest as error:
            return self._error(HTTPStatus.BAD_REQUEST, "The address is wrong", f"{error}.")
        except NotTraced as error:
            reason = f"{error}. The rows are there without it."
            return self._error(HTTPStatus.CONFLICT, "The documents cannot be read again", reason)
        except (DataError, UsageError, OSError) as error:
            return self._error(HTTPStatus.INTERNAL_SERVER_ERROR, "The dataset cannot be read", str(error))
        except Exception:
            _log.exception("%s: this is a bug", target[:200])
            reason = "This is a bug of tokenmill; its traceback is in the terminal."
            return self._error(HTTPStatus.INTERNAL_SERVER_ERROR, "The page cannot be shown", reason)

    def _values(self, path: str, query: str) -> tuple[str, dict[str, Any]]:
        """Returns the template of a page and its values. Raises the errors that `respond` handles."""
        for form, template, values_of in _PAGES:
            match = re.fullmatch(form, path)
            if match:
                try:
                    parameters = dict(parse_qsl(query, max_num_fields=_MOST_PARAMETERS))
                except ValueError as error:
                    raise BadRequest(f"the query cannot be parsed: {error}") from error
                dataset = self._holder.get()
                has_rows = dataset.splits[0].has_rows
                common = {
                    "dataset": dataset,
                    "noun": "row" if has_rows else "document",
                    "has_rows": has_rows,
                    "page": template,
                }
                return template, common | values_of(dataset, parameters, *match.groups())
        raise pages.NotFound("There is no such page.")

    def _page(self, status: HTTPStatus, template: str, values: dict[str, Any]) -> Response:
        page = environment(_PACKAGE).get_template(f"{template}.html.jinja")
        text = page.render(root=self._root, **values)
        return Response(status, "text/html; charset=utf-8", text.encode(errors="backslashreplace"))

    def _error(self, status: HTTPStatus, title: str, reason: str) -> Response:
        return self._page(status, "error", {"title": title, "reason": reason})
