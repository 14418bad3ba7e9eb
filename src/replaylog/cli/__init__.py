"""The command line: one verb per file, each a thin face of the library.

Guarantees: exit 0 for yes, 1 for no, 2 for a usage error, 3 for a log that cannot be read; what
`--json` prints on stdout is JSON and nothing else; errors go to stderr.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point `replaylog`."""
    try:
        from replaylog.cli._app import app
    except ImportError as error:
        missing = error.name or ""
        if missing.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"replaylog: the command line needs {missing}: pip install 'replaylog[cli]'")
    app()
