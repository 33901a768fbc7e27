"""Recognizes the HTML pages that this program wrote, by the checksum at their end."""

from __future__ import annotations

import re

import google_crc32c

_PAGE_HEAD = b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
_CHECKSUM_LINE = re.compile(rb"<!-- tokenmill: crc32c ([0-9a-f]{8}) of all lines above -->\n\Z")


def signed_page(page: bytes) -> bytes:
    """Appends a line with a checksum to an HTML page, by which `is_own_page` recognizes it."""
    return page + f"<!-- tokenmill: crc32c {google_crc32c.value(page):08x} of all lines above -->\n".encode()


def is_own_page(page: bytes) -> bool:
    """Returns whether this program wrote the page, and it is unchanged."""
    checksum_line = _CHECKSUM_LINE.search(page)
    return (
        checksum_line is not None
        and f"{google_crc32c.value(page[: checksum_line.start()]):08x}".encode() == checksum_line[1]
    )


def is_unfinished_page(page: bytes) -> bool:
    """Returns whether it is the beginning of a page of this program, from a run that was killed while writing it."""
    return page.startswith(_PAGE_HEAD) or _PAGE_HEAD.startswith(page)
