"""Who may ask: Host, Origin, bearer token, tickets. Pure decisions on values of the request.

Guarantees: secrets are compared in constant time; a ticket opens reads only, of the session that it
names, until it expires; nothing here looks at the log, so a stranger learns nothing about it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Callable
from urllib.parse import unquote_plus, urlsplit

from replaylog.asgi._asked import Asking
from replaylog.asgi._problems import Problem
from replaylog.asgi._settings import Settings

__all__ = ["Guard", "RedactTickets", "redact"]

READS = frozenset({"GET", "HEAD", "OPTIONS"})
SEEN_MAX = 64


class Guard:
    """The checks that come before any handler. `now_s` is the wall clock, for tickets."""

    def __init__(self, settings: Settings, now_s: Callable[[], float]) -> None:
        self._token = settings.token.encode() if settings.token else None
        self._hosts = frozenset(host.lower().strip("[]") for host in settings.allowed_hosts)
        self._seen: set[bytes] = set()  # Hosts that were found good: parsing one costs as much as a verdict
        self._origins = frozenset(settings.cors)
        self._ttl_s, self._ttl_max_s = settings.ticket_ttl_s, settings.ticket_ttl_max_s
        self._now_s = now_s
        # From the token where there is one: then any worker, and the next process, honours the ticket.
        base = self._token or secrets.token_bytes(32)
        self._ticket_key = hmac.digest(base, b"replaylog ticket 1", "sha256")

    def host(self, request: Asking) -> Problem | None:
        """421 for a Host that nobody told us about: a page that points its name at us (DNS rebinding)."""
        given = request.headers.get(b"host", b"")
        if given in self._seen:
            return None
        name = _hostname(given.decode("latin-1"))
        if "*" in self._hosts or (name is not None and self._known(name)):
            if len(self._seen) < SEEN_MAX:
                self._seen.add(given)
            return None
        return Problem(
            421,
            "host-unknown",
            "Not a name of this server",
            detail="the Host of the request is not among allowed_hosts: add it there",
        )

    def _known(self, name: str) -> bool:
        return name in self._hosts or ("ip" in self._hosts and _is_address(name))

    def origin(self, request: Asking) -> Problem | None:
        """403 for a write that a page of another origin sends."""
        if request.method in READS:
            return None
        given = request.header(b"origin")
        if given is None or given in self._origins or _same_origin(given, request):
            return None
        return Problem(
            403,
            "origin-foreign",
            "Writes from this origin are not allowed",
            detail="the Origin of the request is not this server and not among the origins named for CORS",
        )

    def credentials(self, request: Asking, session: str | None) -> Problem | None:
        """401 unless the bearer token, or for a read a ticket, is right."""
        if self._token is None or self._bearer(request):
            return None
        ticket = request.field("ticket")
        if ticket is not None and request.method in READS and self._opens(ticket, session):
            return None
        return Problem(
            401,
            "unauthorized",
            "A bearer token is required",
            detail="send Authorization: Bearer <token>; a browser reads with ?ticket= from POST /tickets",
            headers={"WWW-Authenticate": 'Bearer realm="replaylog"'},
        )

    def _bearer(self, request: Asking) -> bool:
        scheme, _, given = (request.header(b"authorization") or "").partition(" ")
        assert self._token is not None
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token)
        return same and scheme.lower() == "bearer"

    def issue(self, session: str, ttl_s: float | None = None) -> tuple[str, int]:
        """A ticket for the reads of `session` ("" for all), and its life in seconds."""
        life_s = int(min(self._ttl_s if ttl_s is None else max(ttl_s, 1), self._ttl_max_s))
        name = base64.urlsafe_b64encode(session.encode()).decode().rstrip("=")
        body = f"{int(self._now_s()) + life_s}.{name}"
        return f"{body}.{self._sign(body)}", life_s

    def _sign(self, body: str) -> str:
        return hmac.new(self._ticket_key, body.encode(), hashlib.sha256).hexdigest()[:32]

    def _opens(self, ticket: str, session: str | None) -> bool:
        body, _, signature = ticket.rpartition(".")
        if not ticket.isascii() or not hmac.compare_digest(signature, self._sign(body)):
            return False
        # Signed by us, so the shape is ours.
        expires, _, name = body.partition(".")
        if self._now_s() >= int(expires):
            return False
        only = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        return not only or only == session


def _hostname(host: str) -> str | None:
    try:
        return urlsplit("//" + host).hostname if host and "@" not in host and "/" not in host else None
    except ValueError:  # a bracket without its partner: no name of ours
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_origin(origin: str, request: Asking) -> bool:
    # Not the scheme: behind a proxy that ends TLS we see http where the browser sees https.
    return origin.partition("://")[2].lower() == (request.header(b"host") or "").lower() != ""


def redact(target: str) -> str:
    """A request target without the value of its ticket."""
    path, mark, query = target.partition("?")
    if not mark:
        return target
    return path + mark + "&".join(_redacted(field) for field in query.split("&"))


def _redacted(field: str) -> str:
    name = field.partition("=")[0]
    return f"{name}=..." if unquote_plus(name) == "ticket" else field


class RedactTickets(logging.Filter):
    """For an access log: `logging.getLogger("uvicorn.access").addFilter(RedactTickets())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in record.args)
        return True
