"""An example server for the MCP conformance suite: `python conformance_server.py own|ours`, prints its URL.

It has what the scenarios ask for as far as the SDKs make it easy; the question is not whether all pass, but whether
one that passes without us fails with us.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import mcp.types as types
import uvicorn

import mcp_kit as kit
import replaylog
import replaylog.mcp
from mcp_kit import Context

MIME = "mime_type" if "mime_type" in types.ImageContent.model_fields else "mimeType"
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82"
)
BASE64 = base64.b64encode(PIXEL).decode()


def make() -> Any:
    server, _ = kit.make_server()

    @server.tool()
    async def test_simple_text() -> str:
        """A plain text."""
        return "This is a simple text response for testing."

    @server.tool()
    async def test_error_handling() -> str:
        """Always fails."""
        raise ValueError("This tool intentionally returns an error for testing")

    @server.tool()
    async def test_tool_with_progress(ctx: Context) -> str:
        """Reports progress three times."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_tool_with_logging(ctx: Context) -> str:
        """Logs three times."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(text)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_reconnection(ctx: Context) -> str:
        """Closes its stream, then answers."""
        await kit.close_stream(ctx)
        await asyncio.sleep(0.2)
        return "Reconnection test completed"

    @server.tool()
    async def test_image_content() -> Any:
        """An image."""
        return [types.ImageContent(type="image", data=BASE64, **{MIME: "image/png"})]

    @server.tool()
    async def test_multiple_content_types() -> Any:
        """Text and an image."""
        text = types.TextContent(type="text", text="Multiple content types test:")
        return [text, types.ImageContent(type="image", data=BASE64, **{MIME: "image/png"})]

    @server.tool()
    async def test_sampling(ctx: Context, prompt: str) -> str:
        """Asks the client's model, on this call's stream."""
        asked = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
        found = await kit.session_of(ctx).create_message([asked], max_tokens=100, related_request_id=ctx.request_id)
        return f"LLM response: {found.content}"

    @server.tool()
    async def test_elicitation(ctx: Context, message: str) -> str:
        """Asks the client's user, on the GET stream."""
        fields = {"username": {"type": "string"}, "email": {"type": "string"}}
        schema = {"type": "object", "properties": fields, "required": ["username", "email"]}
        found = await kit.session_of(ctx).elicit(message, schema)
        return f"User response: {found.action}"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'

    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return PIXEL

    @server.prompt()
    def test_simple_prompt() -> str:
        """A prompt."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A prompt with arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    return server


async def main(whose: str) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    if whose == "ours":
        log = replaylog.open(None, durability="memory")
        app = replaylog.mcp.resumable(make(), log, retry_interval=500)
    else:
        app = kit.own_app(make(), kit.own_store(1000), retry_interval=500)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve([sock])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
