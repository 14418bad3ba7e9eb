"""One GET after another over a caller's or an own httpx client.

Guarantees: raw bytes only (`Accept-Encoding: identity`); a redirect is followed inside the origin
and nowhere else, because the headers may hold credentials; the read timeout is the idle timeout;
`interrupt` ends a read that is blocked. Nothing is decided here.

Used by the reader's thread; `interrupt` from any. httpx itself is imported only where no client
was handed in, and the exceptions are looked up beside the client, so that a client of httpx2, or of
anything else with the same names, will do.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

__all__ = ["REDIRECTS_MAX", "Transport", "same_origin"]

REDIRECTS_MAX = 5
_PORTS = {"http": 80, "https": 443}
# Retrying cannot mend these: the request itself is at fault.
_OUR_FAULT = ("UnsupportedProtocol", "LocalProtocolError")


class Transport:
    def __init__(
        self,
        url: str,
        *,
        client: Any = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        if urlsplit(url).scheme not in _PORTS:
            raise ValueError(f"{url!r} is not an http or https address")
        if hasattr(client, "aclose"):
            raise TypeError(
                "an async client cannot be read from the reader's thread: pass a sync one (httpx.Client), "
                "also under asyncio"
            )
        self._url = url
        self._own = client is None
        self._client = _new_client() if client is None else client
        self._headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", **(headers or {})}
        self._timeout = (connect_timeout_s, idle_timeout_s, connect_timeout_s, connect_timeout_s)
        self._response: Any = None
        self._interrupted = False
        library = _library_of(self._client)
        self.silence: type[Exception] = library.ReadTimeout
        self.failures: tuple[type[Exception], ...] = (library.TransportError, OSError)
        self.our_fault = tuple(getattr(library, name) for name in _OUR_FAULT)

    @contextlib.contextmanager
    def get(self, last_event_id: str | None) -> Iterator[Any]:
        """The response to a GET with this cursor, its body not read yet."""
        url = self._url
        for left in range(REDIRECTS_MAX, -1, -1):
            response = self._send(url, last_event_id)
            target = urljoin(url, response.headers.get("location", ""))
            if not (
                300 <= response.status_code < 400 and left and target != url and same_origin(url, target)
            ):
                break
            response.close()
            url = target
        try:
            yield response
        finally:
            self._response = None
            response.close()

    def interrupt(self) -> None:
        """Ends the read that is going on. Closing the response would not: a blocked recv stays blocked."""
        self._interrupted = True
        response = self._response
        stream = response.extensions.get("network_stream") if response is not None else None
        found = stream.get_extra_info("socket") if stream is not None else None
        if isinstance(found, socket.socket):
            with contextlib.suppress(OSError):  # it is closed already, which is what was wanted
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def close(self) -> None:
        """A caller's client stays open: it is the caller's."""
        if self._own:
            self._client.close()

    def _send(self, url: str, last_event_id: str | None) -> Any:
        headers: dict[str, str | bytes] = {**self._headers, "Accept-Encoding": "identity"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id.encode()
        request = self._client.build_request("GET", url, headers=headers, timeout=self._timeout)
        response = self._client.send(request, stream=True, follow_redirects=False)
        self._response = response
        if self._interrupted:
            response.close()
            raise ConnectionAbortedError("the stream was closed")
        return response


def same_origin(url: str, other: str) -> bool:
    return _origin(url) == _origin(other)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _new_client() -> Any:
    try:
        import httpx
    except ImportError as missing:
        raise ImportError("connect() needs httpx: pip install 'replaylog[client]'") from missing
    return httpx.Client()


def _library_of(client: Any) -> Any:
    """The package that the client's class, or the class it derives from, comes from."""
    for base in type(client).__mro__:
        library = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(library, "TransportError") and hasattr(library, "ReadTimeout"):
            return library
    raise TypeError(f"{type(client).__name__} is not a client of httpx, nor of a library with its names")
