"""Runs page by page; a mark says where the next one begins."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from zlib import crc32

from perdure.client import RUNS, Client, summarise
from perdure.connection import rpc_errors
from perdure.errors import ConfigError
from perdure.status import RunSummary

SERVER_PAGE = 1_000
"""The server gives no more at once."""
CHECKSUM = 4
"""Bytes after the server's mark."""


async def read_page(
    client: Client, query: str, limit: int | None, mark: str | None = None
) -> tuple[list[RunSummary], str | None]:
    """At most `limit` runs from a mark on, and the mark of those that come after them, None at the end."""
    found: list[RunSummary] = []
    token = _token(mark)
    with rpc_errors(client.temporal):
        while True:
            size = SERVER_PAGE if limit is None else min(SERVER_PAGE, limit - len(found))
            page = client.temporal.list_workflows(
                f"{RUNS} AND {query}" if query else RUNS, page_size=size, next_page_token=token
            )
            await page.fetch_next_page()
            found += [await summarise(run) for run in page.current_page or ()]
            token = page.next_page_token
            if not token:
                return found, None
            if limit is not None and len(found) >= limit:
                return found, _mark(token)


def _mark(token: bytes) -> str:
    """The server's own mark with a checksum, so that a mistyped one is known before the server sees it."""
    return urlsafe_b64encode(token + crc32(token).to_bytes(CHECKSUM)).decode().rstrip("=")


def _token(mark: str | None) -> bytes | None:
    """The server's own mark; raises ConfigError for what is none."""
    if mark is None:
        return None
    try:
        given = urlsafe_b64decode(mark + "=" * (-len(mark) % 4))
    except ValueError:
        given = b""
    token, checksum = given[:-CHECKSUM], given[-CHECKSUM:]
    if not token or crc32(token).to_bytes(CHECKSUM) != checksum:
        raise ConfigError(
            f"--page: {mark[:40]!r} is no mark that a list has printed; leave --page out to begin with the newest runs"
        )
    return token
