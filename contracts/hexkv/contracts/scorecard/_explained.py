"""An error as one line, also for a failed assertion without a message.

pytest explains the assertions of modules that it was the first to import. For others, an adapter's
own for instance, the line is the statement and the values of its names.
"""

from __future__ import annotations

import ast
import linecache
import traceback
from pathlib import Path
from reprlib import repr as brief

_LONGEST = 500
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, type(None))
"""Types whose values can be shown without calling code of the adapter."""


def explained(error: BaseException) -> str:
    """The first line of the message of *error*, and the names of its cases."""
    said = (str(error).splitlines() or [""])[0][:_LONGEST]
    if not isinstance(error, AssertionError):
        said = f"{type(error).__name__}: {said}"
    elif not said:
        said = _statement(error)[:_LONGEST]
    cases = [note for note in getattr(error, "__notes__", ()) if note.startswith("case: ")]
    return "; ".join([said, *reversed(cases)])


def _statement(error: AssertionError) -> str:
    """The assertion, the values of its names, and its position; else the position alone."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    name = frame.f_code.co_filename
    place = f"({Path(name).name}:{line})"
    unknown = f"AssertionError {place}"
    try:
        tree = ast.parse("".join(linecache.getlines(name, frame.f_globals)))
    except SyntaxError:
        return unknown
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or line)
    ]
    if not around:
        return unknown
    names = [node.id for node in ast.walk(around[-1].test) if isinstance(node, ast.Name)]
    known = {**frame.f_globals, **frame.f_locals}
    values = [
        f"{name} = {brief(known[name])}"
        for name in dict.fromkeys(names)
        if type(known.get(name, error)) in _PLAIN
    ]
    said = f"assert {ast.unparse(around[-1].test)}"
    return f"{said}{', where ' if values else ''}{', '.join(values)} {place}"
