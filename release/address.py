"""Writes the public address of the repository into the distributions of an exported tree.

    python release/address.py build/release https://host/owner/hexkv v0.2.0

Each project file gets ``[project.urls]``. In each README that an index shows, links to files of the
repository become links to that address. The repository itself names none: copies have their own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from version import files

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s:]+)(#[^)\s]*)?\)")


def urls(address: str, ref: str) -> str:
    """Return the table of a project file."""
    shown = f"{address}/blob/{ref}"
    return f"""
[project.urls]
Homepage = "{address}"
Documentation = "{shown}/docs/index.md"
Source = "{address}"
Issues = "{address}/issues"
Changelog = "{shown}/CHANGELOG.md"
"""


def absolute(text: str, folder: Path, root: Path, address: str, ref: str) -> str:
    """Return the *text* of a page in *folder*, its links to files below *root* made absolute."""

    def link(found: re.Match[str]) -> str:
        words, target, part = found.groups(default="")
        path = (folder / target).resolve()
        if not path.is_relative_to(root) or not path.exists():
            return found[0]
        kind = "raw" if words.startswith("!") else "tree" if path.is_dir() else "blob"
        return f"{words}({address}/{kind}/{ref}/{path.relative_to(root).as_posix()}{part})"

    return _LINK.sub(link, text)


def write(root: Path, address: str, ref: str) -> None:
    """Write it into all distributions below *root*."""
    root, address = root.resolve(), address.rstrip("/")
    for path in files(root):
        path.write_text(path.read_text() + urls(address, ref))
        page = path.with_name("README.md")
        page.write_text(absolute(page.read_text(), page.parent, root, address, ref))


if __name__ == "__main__":
    if len(sys.argv) != 4 or not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+/?", sys.argv[2]):
        sys.exit("give a folder, the repository's address, as https://host/owner/hexkv, and a tag")
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
