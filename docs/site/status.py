"""Makes ``docs/status.md`` of ``docs/status.yaml``: ``make status``."""

from pathlib import Path

import yaml

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "status.md"

Row = dict[str, str | list[str]]

_HEAD = """\
# Status

Made of [status.yaml](status.yaml) by `make status`. A part is done where the last column is
empty; otherwise that column has what was not seen, is missing or is short of its goal. `pytest`
is that of `.venv`, and with `-m ""` runs what `make test` leaves out; tests of a real vLLM
(`e2e`, `tests_vllm`) run by the `pytest` of `.venv/vllm`, those of SGLang by that of
`.venv/sglang`. [Hardware](hardware.md) has the stand-ins for missing hardware,
[measurements](measured.md) the speed of each path.
"""


def sections() -> dict[str, list[Row]]:
    """Return the rows of each section."""
    found: dict[str, list[Row]] = yaml.safe_load((DOCS / "status.yaml").read_text())
    return found


def commands(row: Row) -> list[str]:
    """Return the commands that show a row."""
    return [row["shown"]] if isinstance(row["shown"], str) else row["shown"]


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for title, rows in sections().items():
        lines = [f"## {title}", "", "| what | seen on | shown by | open |"]
        lines += ["| --- | --- | --- | --- |"]
        for row in rows:
            shown = ", ".join(f"`{command}`" for command in commands(row)) or "nothing"
            lines.append(f"| {row['what']} | {row['seen']} | {shown} | {row.get('open', '')} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
