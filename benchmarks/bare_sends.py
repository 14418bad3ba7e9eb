"""Fan-out without a server: send(2) once per connection, in a loop. What the kernel alone takes.

    bare_sends.py PORT FOLLOWERS ANSWER_BYTES EVENT_BYTES

Answers FOLLOWERS connections with ANSWER_BYTES each; every later one makes it send EVENT_BYTES to all.
"""

import resource
import socket
import sys

PORT, FOLLOWERS, ANSWER, EVENT = map(int, sys.argv[1:])


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listening = socket.create_server(("127.0.0.1", PORT), backlog=2048)
    followers: list[socket.socket] = []
    event = b"e" * EVENT
    while True:
        sock, _ = listening.accept()
        if not sock.recv(65536):
            sock.close()
        elif len(followers) < FOLLOWERS + 1:  # one is the load generator's own look at the answer
            sock.send(b"a" * ANSWER)
            followers.append(sock)
        else:
            for follower in followers:
                try:
                    follower.send(event)
                except OSError:
                    continue
            sock.close()


if __name__ == "__main__":
    main()
