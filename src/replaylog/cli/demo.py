"""`replaylog demo`: the incident, three times, on real sockets, drawn as a timeline.

Guarantees: exit 0 only if each act was seen as its title states it.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from replaylog.cli._common import Exit, Json, fail, print_json
from replaylog.cli._demo import DROP_AT, HEAD, LIVE, Seen, play

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Act(NamedTuple):
    """One run of the incident and what must be seen."""

    title: str
    window: int
    kill: bool
    holds: Callable[[Seen], bool]


def _refused(seen: Seen) -> bool:
    lost = seen.floor - 1 - DROP_AT
    return (seen.status, seen.verdict, seen.floor) == (409, "below-floor", 67) and seen.lost == lost == 25


def _replayed(seen: Seen) -> bool:
    whole = seen.replayed == list(range(DROP_AT + 1, HEAD + 1))
    return (seen.status, seen.verdict, seen.proof) == (200, "resumable", "chain") and whole


def _replayed_then_live(seen: Seen) -> bool:
    return _replayed(seen) and seen.live == list(range(HEAD + 1, HEAD + LIVE + 1))


ACTS = (
    Act("A window of 64 events: the cursor is refused, the lost range is named", 64, False, _refused),
    Act("A window of 256 events: 42..130 are replayed, proven", 256, False, _replayed),
    Act("The server is killed at 130 and comes back: replayed, then live", 256, True, _replayed_then_live),
)


def run(as_json: Json = False) -> None:
    """Act the incident three times on real sockets. Exit 0 only if each act was seen as stated."""
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    console = None if as_json else _console()
    for number, act in enumerate(ACTS, 1):
        seen = _play(act)
        results.append({"title": act.title, "ok": act.holds(seen), **asdict(seen)})
        if console is not None:
            _draw(console, number, act, seen)
    ok = all(result["ok"] for result in results)
    seconds = round(time.monotonic() - began, 2)
    if console is None:
        print_json({"ok": ok, "seconds": seconds, "acts": results})
    else:
        verdict = "[green]All three seen as stated[/]" if ok else "[red]Not seen as stated[/]"
        console.print(f"{verdict}, in {seconds} s.")
    raise typer.Exit(Exit.YES if ok else Exit.NO)


def _play(act: Act) -> Seen:
    with tempfile.TemporaryDirectory(prefix="replaylog-demo-") as root:
        try:
            return play(Path(root) / "events", act.window, kill=act.kill)
        except (RuntimeError, OSError, ValueError, http.client.HTTPException) as error:
            fail(Exit.NO, f"the act could not be played: {error}")


# --- drawing -------------------------------------------------------------------------------------


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


STYLES = {"seen": ("█", "green"), "lost": ("░", "red"), "replayed": ("█", "cyan"), "live": ("█", "magenta")}
KEPT = ("▒", "bright_black")
IDS_PER_CELL = 2


def _draw(console: Console, number: int, act: Act, seen: Seen) -> None:
    from rich.panel import Panel
    from rich.text import Text

    text = Text()
    text.append_text(_bar(seen))
    text.append("\n\n")
    for at_s, who, what in seen.steps:
        text.append(f"{at_s:6.2f} s  ", "bright_black")
        text.append(f"{who:<9}", "bold")
        text.append(what + "\n")
    text.append_text(_conclusion(act, seen))
    console.print(Panel(text, title=f"{number}. {act.title}", title_align="left", width=96))


def _bar(seen: Seen) -> Text:
    """The line of ids, 1 on the left; one cell for two ids, its later one decides."""
    from rich.text import Text

    last = HEAD + len(seen.live)
    text = Text("1 ")
    for id in range(IDS_PER_CELL, last + IDS_PER_CELL, IDS_PER_CELL):
        glyph, style = STYLES.get(_state(min(id, last), seen), KEPT)
        text.append(glyph, style)
    text.append(f" {last}\n  ")
    used = ["seen", "lost" if seen.lost else "replayed", *(["live"] if seen.live else [])]
    for name in used:
        glyph, style = STYLES[name]
        text.append(f"{glyph} {name}  ", style)
    if not seen.replayed:
        text.append(f"{KEPT[0]} retained", KEPT[1])
    return text


def _state(id: int, seen: Seen) -> str:
    if id <= DROP_AT:
        return "seen"
    if id in seen.live:
        return "live"
    if id in seen.replayed:
        return "replayed"
    return "lost" if id < seen.floor else "retained"


def _conclusion(act: Act, seen: Seen) -> Text:
    from rich.text import Text

    if not act.holds(seen):
        return Text(f"        not as stated: {seen.status} {seen.verdict}", "bold red")
    if seen.lost:
        fact = f"events {DROP_AT + 1}..{seen.floor - 1} ({seen.lost}) are gone, and the client knows it"
        return Text("        409: " + fact, "bold green")
    return Text(f"        200: every id after {DROP_AT} arrived once, in order", "bold green")
