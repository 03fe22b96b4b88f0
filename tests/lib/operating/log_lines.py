"""All lines that the product can log, read from its code: the table of ``docs/logs.md``.

``python -m tests.lib.operating.log_lines`` writes the table anew.
"""

import ast
import re
from keyword import kwlist
from pathlib import Path
from typing import NamedTuple

from hexkv.core.notices import BACK, OFF, OUTAGE
from hexkv.plugins.observing.logs import component

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "logs.md"
BEGIN, END = "<!-- lines: from the code -->\n", "<!-- end of lines -->\n"
LEVELS = {"exception": "error"} | {it: it for it in ("debug", "info", "warning", "error")}
LOGS = re.compile(r"(?:self\.)?_?log|logging\.getLogger\(.*\)")
SKIPPED = {*kwlist, "self", "str", "len", "join", "type"}
PLAIN = str.maketrans("|`", "/'")
PLACE = re.compile(r"%[-.\d]*[sdrfg]")

OF_OUTAGES = [f"{OUTAGE}: OPERATION: ERROR", f"{BACK} after SECONDS s"]
OF_BREAKERS = [
    f"{OFF} SECONDS s, later for up to SECONDS s: ERROR",
    f"DIRECTION {OFF} SECONDS s, later for up to SECONDS s: ERROR",
    f"DIRECTION {BACK} after SECONDS s",
]
"""Besides those of all notices."""


class LogLine(NamedTuple):
    """One line, with names in place of its values."""

    component: str
    text: str
    level: str


def lines_of(source: str, module: str) -> set[LogLine]:
    """The lines that the code *source* of *module* logs."""
    tree = ast.parse(source)
    names = re.findall(r'^\w*log = logging.getLogger\("([\w.]+)"\)', source, re.MULTILINE)
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = ast.unparse(call.func)
        if named == "Notices":
            name = component(module)
            subject, verbs = text_of(call.args[1]), verbs_of(call, tree)
            found.add(LogLine(name, f"{subject}: OPERATION {verbs[0]}: ERROR", "warning"))
            found.add(LogLine(name, f"{subject}: OPERATION {verbs[1]} after SECONDS s", "warning"))
            more = OF_OUTAGES if "outage=" in source else []
            more = more + OF_BREAKERS if subject.startswith("tier ") else more
            found |= {LogLine(name, f"{subject}: {words}", "warning") for words in more}
            continue
        log, _, level = named.rpartition(".")
        if level not in {*LEVELS, "log"} or not LOGS.fullmatch(log):
            continue
        if module == "hexkv.core.notices":
            continue  # those of its users
        own = re.findall(r"getLogger\('([\w.]+)'\)", log) or names
        level = "warning or error" if level == "log" else LEVELS[level]
        values = call.args[1:] if named.endswith(".log") else call.args
        found.add(LogLine(component(own[0] if own else module), filled(values), level))
    return found


def filled(values: list[ast.expr]) -> str:
    """A format with the names of its values in capitals."""
    names = iter(map(name_of, values[1:]))
    return PLACE.sub(lambda _: next(names, "VALUE"), text_of(values[0]))


def text_of(node: ast.expr) -> str:
    """A literal text; of one with values in it, their names."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(it.value) if isinstance(it, ast.Constant) else name_of(it.value)
            for it in node.values
        )
    return name_of(node)


def name_of(node: ast.expr) -> str:
    """A word for the value of an expression."""
    words = re.findall(r"[a-z_]{2,}", re.sub(r"'[^']*'|\"[^\"]*\"", "", ast.unparse(node)))
    known = [word for word in words if word not in SKIPPED]
    word = (known or ["value"])[-1].strip("_")
    return ("NAME" if word == "name" and "type" in words else word).upper()


def verbs_of(call: ast.Call, tree: ast.Module) -> tuple[str, str]:
    """What a line of notices has for a failure, and for its end."""
    given = [it.value for it in call.keywords if it.arg == "verbs"] or call.args[3:]
    if not given:
        return "failed", "works again"
    node = given[0]
    if isinstance(node, ast.Name):
        node = next(
            it.value
            for it in ast.walk(tree)
            if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == node.id
        )
    first, second = map(text_of, node.elts)
    return first, second


def all_lines() -> set[LogLine]:
    """The lines of all packages."""
    found = set()
    for pattern in ("*/hexkv", "plugins/*/hexkv", "adapters/*/hexkv"):
        for top in ROOT.glob(pattern):
            for path in top.rglob("*.py"):
                inside = path.relative_to(top.parent).with_suffix("")
                found |= lines_of(path.read_text(), ".".join(inside.parts))
    return found


def table() -> str:
    """The table of all lines, in the order of their components."""
    rows = ["| component | line | level |", "| --- | --- | --- |"]
    rows += [
        f"| `{one.component}` | `{one.text.translate(PLAIN)}` | {one.level} |"
        for one in sorted(all_lines())
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    head, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.partition(END)[2])
