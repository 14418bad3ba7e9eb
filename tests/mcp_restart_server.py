"""A server process for tests/test_mcp_restart.py, to be killed: `python mcp_restart_server.py DIR PORT`.

Two bearer tokens, "ann" and "bob", belong to two clients. Prints the URL when it listens.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import uvicorn
from starlette.authentication import AuthCredentials, AuthenticationBackend
from starlette.middleware.authentication import AuthenticationMiddleware

import mcp_kit as kit
import replaylog
import replaylog.mcp


class Tokens(AuthenticationBackend):
    """What the SDKs' own bearer backend does, without an authorization server."""

    async def authenticate(self, conn: Any) -> Any:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        name = conn.headers.get("authorization", "").removeprefix("Bearer ")
        if name not in ("ann", "bob"):
            return None
        return AuthCredentials([]), AuthenticatedUser(AccessToken(token=name, client_id=name, scopes=[]))


async def main(directory: str, port: int, whose: str = "ours") -> None:
    sock = socket.create_server(("127.0.0.1", port))
    server, _ = kit.make_server()
    if whose == "ours":
        app = replaylog.mcp.resumable(server, replaylog.open(directory))
    else:
        app = kit.own_app(server, kit.own_store(1000))
    app.add_middleware(AuthenticationMiddleware, backend=Tokens())
    config = uvicorn.Config(app, log_level="error")
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(config).serve([sock])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
