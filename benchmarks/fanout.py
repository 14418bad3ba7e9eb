"""One append, many followers: when has the last of them got it?

The time runs from the POST's first byte to the event's last byte at each follower. One worker, one load
generator (loadgen.c) that reads all of them, both on this machine. The bare case is a loop of send(2)
over as many connections, without a server: the kernel's part.
"""

from __future__ import annotations

import argparse
import resource
import socket

from http_load import Bare, Load, Serving, probe, settled, show, write

SIZE = 100
BEFORE = 1000  # events, so that all ids have as many digits


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--followers", type=int, nargs="*", default=[1000, 10_000])
    options.add_argument("--rounds", type=int, default=8)
    asked = options.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load, results = Load(), {}
    for followers in asked.followers:
        with Serving(None, "--events", "100000") as server:
            request, post, answer, event = prepared(server)
            done = load.fanout(server, request, post, followers=followers, rounds=asked.rounds, event=event)
            results[f"{followers} followers"] = show(f"{followers:,} followers", done["rounds"])
            results[f"{followers} followers"] |= {
                "open_s": done["open_s"],
                "server_mib": server.memory_bytes() / 2**20,
            }
        with Bare("bare_sends.py", str(followers), str(answer), str(event)) as bare:
            done = load.fanout(bare, request, post, followers=followers, rounds=asked.rounds, event=event)
            name = f"{followers} connections, a loop of send(2)"
            results[name] = show(f"{followers:,} connections, a loop of send(2)", done["rounds"])
    write("fanout", {"event_bytes": SIZE, "durability": "memory", **vars(asked)}, results)


def prepared(server: Serving) -> tuple[bytes, bytes, int, int]:
    """The request, the POST, and the bytes of their answers: the first, and of one event."""
    server.ask("PUT", "/sessions/s")
    server.extend("s", [("x", "message")] * BEFORE)
    request = f"GET /sessions/s/events?from=head HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()
    head = f"POST /sessions/s/events HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: text/plain\r\n"
    post = f"{head}Content-Length: {SIZE}\r\n\r\n{'x' * SIZE}".encode()
    with socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(request)
        settled(sock)
        probe(server, post)
        event = len(settled(sock))
    return request, post, len(probe(server, request)), event


if __name__ == "__main__":
    main()
