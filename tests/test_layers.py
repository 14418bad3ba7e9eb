"""Imports point down, or along their row; the rows are a table; and a few bounds of style.

What a module imports only for its types (`if TYPE_CHECKING:`) is no dependency and counts nowhere.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parent.parent
PACKAGE, EXT = PROJECT / "src" / "replaylog", PROJECT / "ext" / "replaylog"

pytestmark = pytest.mark.skipif(not EXT.exists(), reason="needs the source tree")

# row -> (its modules, the rows that it may import, the third parties that it may import)
ROWS: dict[str, tuple[set[str], set[str], set[str]]] = {
    # No I/O, no clock, no thread, no loop.
    "pure": (
        {"_cursor", "_errors", "_format", "_http", "_payload", "_plan", "_retention", "_settings", "_sse", "_verdict"},
        set(),
        {"msgpack"},
    ),
    # Bytes, integers, one file. C.
    "bytes": ({"_frame", "_ring", "_journal", "_judge"}, {"pure"}, set()),
    "store": (
        {"store", "store.protocol", "store.memory", "store.embedded", "store.truncation"},
        {"pure", "bytes"},
        {"lmdb"},
    ),
    # A session never sees a store's kind: it asks whatever its log was given.
    "session": ({"_session"}, {"pure", "bytes"}, set()),
    "log": (
        {"_log", "_recovery", "_checkpoint", "_writer", "_verify", "_backup", "_watch", "_directory"},
        {"pure", "bytes", "store", "session"},
        set(),
    ),
    # Public names only, each loaded when it is first used.
    "root": ({""}, {"pure"}, set()),
    "aio": ({"aio"}, {"pure", "bytes", "session", "log"}, set()),
    "wsgi": ({"wsgi"}, {"pure", "session", "log", "root"}, set()),
    "client": ({"client"}, {"pure"}, {"httpx", "httpx2"}),
    "asgi": ({"asgi"}, {"pure", "session", "log", "aio", "root"}, {"starlette", "uvicorn", "uvloop", "msgpack"}),
    "mcp": (
        {"mcp"},
        {"pure", "session", "log", "aio", "asgi", "root"},
        {"mcp", "mcp_types", "starlette", "anyio", "pydantic"},
    ),
    "cli": ({"cli"}, {"pure", "session", "log", "aio", "asgi", "client", "root"}, {"typer", "rich"}),
}
FACES = {"client", "asgi", "mcp", "cli"}  # rows that are packages of their own

# What would be I/O, a clock, a thread or a loop.
EFFECTS = {
    "anyio", "asyncio", "concurrent", "fcntl", "io", "mmap", "multiprocessing", "os", "pathlib", "queue", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip

LINES_MAX = 320
LONG_FILES = {  # file -> (its own bound, why it is one file)
    "_session.pyx": (1900, "the hot path: what a call per event goes through must be one compile unit of cdef calls"),
    "_journal.pyx": (1000, "group commit, its bells and reading back share one mutex and one block layout"),
    "_ring.pyx": (450, "a chunk and the segment it becomes share their index"),
    "_judge.pyx": (400, "cursor, judgement and verdict: one decision"),
    "_log.py": (900, "the public face: most of it is argument checks and docstrings"),
    "aio.py": (720, "a veneer with one method for each of the engine's"),
    "store/embedded.py": (600, "every LMDB call of the project, so that its hazards are in one place"),
    "mcp/_book.py": (520, "the one table that maps MCP's streams to sessions"),
}


class Import(NamedTuple):
    module: str  # dotted, as named
    names: tuple[str, ...]
    at_import: bool  # runs when the module is loaded, not in a function


# ---- reading imports --------------------------------------------------------------------------------------


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def python_imports(text: str) -> Iterator[Import]:
    """What Python source imports, blocks for type checkers left out."""
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
    while stack:
        node, at_import = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), at_import)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            yield Import(node.module or "", tuple(alias.name for alias in node.names), at_import)
        inner = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        children = node.orelse if isinstance(node, ast.If) and _for_types(node) else ast.iter_child_nodes(node)
        stack += [(child, inner) for child in children]


def cython_imports(text: str) -> Iterator[Import]:
    """What Cython source imports or cimports."""
    text = re.sub(r"\(\s*\n(.*?)\)", lambda found: found.group(1).replace("\n", " "), text, flags=re.DOTALL)
    for line in text.splitlines():
        found = re.match(r"\s*from\s+(\S+)\s+c?import\s+(.+)", line) or re.match(r"\s*c?import\s+(\S+)()", line)
        if found:
            names = tuple(name.strip() for name in found.group(2).split(",") if name.strip())
            yield Import(found.group(1), names, not line.startswith(" "))


@cache
def modules() -> dict[str, tuple[Import, ...]]:
    """Every module of the package by its dotted name below it ("" is the package), with what it imports."""
    out: dict[str, list[Import]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        out[name] = list(python_imports(path.read_text()))
    for path in [*EXT.glob("*.pyx"), *EXT.glob("*.pxd")]:
        out.setdefault(path.stem, []).extend(cython_imports(path.read_text()))
    return {name: tuple(found) for name, found in out.items()}


def row_of(module: str) -> str:
    head = module.partition(".")[0]
    name = head if head in FACES else module
    for row, (members, _, _) in ROWS.items():
        if name in members:
            return row
    raise AssertionError(f"module {module!r} stands in no row of the table: put it into one")


def ours(module: str) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a module imports, and whether it does when it is loaded."""
    for found in modules()[module]:
        top, _, rest = found.module.partition(".")
        if top != "replaylog":
            continue
        if rest:
            for target in (f"{rest}.{name}" for name in found.names):
                if target in modules():
                    yield target, found.at_import
            yield rest, found.at_import
        else:
            submodules = [name for name in found.names if name in modules()]
            yield from ((name, found.at_import) for name in submodules)
            if len(submodules) < len(found.names) or not found.names:
                yield "", found.at_import


def others(module: str) -> set[str]:
    """Top-level names from outside of the package."""
    tops = {found.module.partition(".")[0] for found in modules()[module]}
    return tops - {"replaylog", "libc", "cpython", "cython", "__future__"}


# ---- the rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", sorted(modules()) if EXT.exists() else [])
def test_imports_point_down_or_along_the_row(module: str) -> None:
    row = row_of(module)
    allowed = ROWS[row][1] | {row}
    for target, _ in ours(module):
        assert row_of(target) in allowed, f"{module} ({row}) imports {target} ({row_of(target)})"


@pytest.mark.parametrize("module", sorted(modules()) if EXT.exists() else [])
def test_third_parties_stay_in_their_rows(module: str) -> None:
    foreign = others(module) - set(sys.stdlib_module_names)
    assert foreign <= ROWS[row_of(module)][2], module


def test_only_the_embedded_store_imports_lmdb() -> None:
    assert {module for module in modules() if "lmdb" in others(module)} == {"store.embedded"}


def test_only_the_format_and_the_body_of_a_request_know_msgpack() -> None:
    assert {module for module in modules() if "msgpack" in others(module)} == {"_format", "asgi._body"}


def test_the_pure_row_and_the_judgement_have_no_effects() -> None:
    for module in ROWS["pure"][0] | {"_judge", "_frame", "_ring"}:
        assert not others(module) & EFFECTS, module


def test_below_aio_nobody_knows_a_loop() -> None:
    below = {"pure", "bytes", "store", "session", "log", "root", "wsgi"}
    loops = {"asyncio", "anyio", "trio", "uvloop"}
    assert not [module for module in modules() if row_of(module) in below and others(module) & loops]


def test_aio_decides_nothing() -> None:
    """It has no access to cursors, limits, floors, payload checks or the format: it can only await the engine."""
    targets = {target for target, _ in ours("aio")}
    assert targets <= {"_errors", "_journal", "_judge", "_log", "_ring", "_session", "_watch"}, targets
    [judge] = [found.names for found in modules()["aio"] if found.module == "replaylog._judge"]
    assert judge == ("Verdict",)


def test_the_client_needs_neither_the_core_nor_the_engine() -> None:
    for module in modules():
        if row_of(module) == "client":
            assert {row_of(target) for target, _ in ours(module)} <= {"pure", "client"}, module


def test_no_module_is_loaded_in_a_circle() -> None:
    graph = {module: {target for target, now in ours(module) if now and target != module} for module in modules()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        # A package is loaded before its modules, and its name is no use of what it loads.
        assert module not in path, " -> ".join((*path, module))
        if module in done:
            return
        for target in sorted(graph[module]):
            if not module.startswith(f"{target}.") and target:
                visit(target, (*path, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_the_table_has_no_row_that_looks_up() -> None:
    order = list(ROWS)
    for row, (_, allowed, _) in ROWS.items():
        assert allowed <= set(order[: order.index(row)]), row


def test_the_reading_of_imports_has_teeth() -> None:
    text = "import a.b\nif TYPE_CHECKING:\n    import never\nelse:\n    import c\ndef f():\n    from d import e, g\n"
    assert set(python_imports(text)) == {Import("a.b", (), True), Import("c", (), True), Import("d", ("e", "g"), False)}
    cython = "from a.b cimport (\n    c, d,\n    e,\n)\ncimport f\nimport g\n    import h\n"
    assert list(cython_imports(cython)) == [
        Import("a.b", ("c", "d", "e"), True), Import("f", (), True), Import("g", (), True), Import("h", (), False),
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="in no row"):
        row_of("_newcomer")


# ---- style ------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *EXT.glob("*.pyx"), *EXT.glob("*.pxd")])


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else EXT))


def test_files_are_short_or_say_why_not() -> None:
    lengths = {short(path): len(path.read_text().splitlines()) for path in sources()}
    long = {name: n for name, n in lengths.items() if n > LONG_FILES.get(name, (LINES_MAX, ""))[0]}
    assert not long, f"split them, or give a reason in LONG_FILES: {long}"
    idle = [name for name in LONG_FILES if lengths.get(name, 0) <= LINES_MAX]
    assert not idle, f"these need no exception any more: {idle}"


def test_every_module_opens_with_what_it_guarantees() -> None:
    for path in sources():
        text = path.read_text()
        assert not text or text.startswith('"""'), path


@pytest.mark.parametrize("name", ["replaylog", "replaylog.aio", "replaylog.client", "replaylog.wsgi"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    module = pytest.importorskip(name)
    public = {public: getattr(module, public) for public in module.__all__}
    for each in [each for each in public.values() if isinstance(each, type)]:
        members = {key: member for key, member in vars(each).items() if not key.startswith("_") and callable(member)}
        public |= {f"{each.__name__}.{key}": member for key, member in members.items()}
    named = (type, type(python_imports), type(len))
    assert not [key for key, each in public.items() if isinstance(each, named) and not each.__doc__]


def test_only_the_command_line_prints() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), f"{path}:{node.lineno}"


OBJECTS = {"object", "bytes", "str", "Chunk", "Event", "Pin", "Verdict"}


def test_every_cdef_says_how_it_fails() -> None:
    """`noexcept`, or `except ...`, or an object: a C function that swallows an exception is a lost error."""
    for path in EXT.glob("*.pxd"):
        text = re.sub(r"#.*", "", path.read_text())
        text = re.sub(r",\s*\n\s+", ", ", text)
        for line in re.findall(r"^\s*cdef (?!extern|class|enum|struct|packed)(.+\(.*\).*)$", text, re.MULTILINE):
            first, *more = line.partition("(")[0].split()
            if more and first not in OBJECTS | {"void"}:  # a void function lets them through
                assert re.search(r"noexcept|except", line), (path.name, line)
