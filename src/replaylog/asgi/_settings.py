"""Every limit of the HTTP face, by name. A frozen value: made once, read from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LOOPBACK_HOSTS", "Settings"]

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an `App` answers. The defaults suit a loopback server.

    `allowed_hosts` are names without a port; `"*"` allows any, `"ip"` any address literal (which no
    other site can point at this server by name). `cors` are origins; `"*"` lets every page read, but
    writing always needs the origin by name.
    """

    token: str | None = None
    allowed_hosts: Sequence[str] = LOOPBACK_HOSTS
    cors: Sequence[str] = ()
    keepalive_s: float = 15.0
    stall_max_s: float = 30.0
    # True only where the server really closes a socket whose write stalls; the header that promises it
    # is sent only then. An application cannot do it: ending a response leaves the socket open.
    stall_enforced: bool = False
    retry_ms: int = 1000
    chunk_bytes: int = 128 * 1024
    streams_max: int = 16_384
    append_timeout_s: float = 10.0
    batch_events_max: int = 10_000
    page_max: int = 1000
    ticket_ttl_s: int = 60
    ticket_ttl_max_s: int = 3600

    def __post_init__(self) -> None:
        for name in ("keepalive_s", "stall_max_s", "append_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ValueError("token must be printable ASCII and not empty: it travels in a header")
