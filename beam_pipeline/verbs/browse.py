"""The verb `browse`: shows a dataset's rows and documents in a web browser on this machine."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import Sequence

from beam_pipeline.browsing.server import ADDRESS, BrowseServer
from beam_pipeline.browsing.site import Site
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import BrowseConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.console import print_document
from beam_pipeline.support.errors import Terminated, UsageError


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments, until Ctrl-C or SIGTERM ends it.

    Raises:
        UsageError: If the port is in use.
        DataError: If the folder is not a finished dataset.
    """
    config, _ = parse(BrowseConfig, argv)
    root = f"/{secrets.token_urlsafe(12)}/"
    dataset = filesystem.absolute(config.dataset)
    site = Site(dataset, root)
    try:
        server = BrowseServer(site, config.port or 0)
    except OSError as error:
        raise UsageError(f"--port {config.port}: {error.strerror}; omit it to use any free port") from error
    url = f"http://{ADDRESS}:{server.server_port}{root}"
    with server:
        try:
            if config.console.json:
                print_document({"dataset": dataset, "url": url})
            else:
                print(url if config.console.quiet else f"{url}\nPress Ctrl-C to end.", flush=True)
            if not config.no_open and _has_display():
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            server.serve_forever()
        except Terminated:
            raise
        except KeyboardInterrupt:
            print(flush=True)  # after the terminal's ^C


def _has_display() -> bool:
    """Returns whether a person is there who would see a window: `webbrowser` could start a text browser otherwise."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
