"""Sets the version of all distributions, and the range in which they require each other.

    python release/version.py 0.2.0

All distributions of a release have one version: ``make version VERSION=0.2.0``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

_OWN = re.compile(r'^version = "\d[^"]*"$', re.MULTILINE)
_OTHERS = re.compile(r'("hexkv[\w-]*(?:\[[\w,]+\])?)>=[\d.]+,<[\d.]+"')


def files(root: Path = ROOT) -> list[Path]:
    """Return the project file of each distribution."""
    patterns = ("pyproject.toml", "*/pyproject.toml", "adapters/*/pyproject.toml")
    return sorted(
        path for pattern in (*patterns, "plugins/*/pyproject.toml") for path in root.glob(pattern)
    )


def version_of(text: str) -> str:
    """Return the version in the text of a project file."""
    found = _OWN.search(text)
    if found is None:
        raise ValueError("there is no version")
    return found[0].split('"')[1]


def with_version(text: str, version: str) -> str:
    """Return the text of a project file with another *version*, as ``0.2.0``."""
    major, minor, _ = version.split(".")
    span = f">={major}.{minor},<{major}.{int(minor) + 1}"
    text, count = _OWN.subn(f'version = "{version}"', text)
    if count != 1:
        raise ValueError(f"there are {count} versions")
    return _OTHERS.sub(rf'\g<1>{span}"', text)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("give a version, such as 0.2.0")
    for path in files():
        path.write_text(with_version(path.read_text(), sys.argv[1]))
