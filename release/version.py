"""Sets the version of all distributions, and the range in which they require each other.

    python release/version.py 0.2.0

All distributions of a release have one version: ``make version VERSION=0.2.0``. Images, charts, the
example of an adapter and the template for new ones name it, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

_OWN = re.compile(r'^version = "\d[^"]*"$', re.MULTILINE)
_OTHERS = re.compile(r'("hexkv[\w-]*(?:\[[\w,]+\])?)>=[\d.]+,<[\d.]+"')
_HELM = "examples/deploy/helm"
_DEPLOYED = [
    "adapters/vllm/deploy/Dockerfile",
    "examples/deploy/images/Dockerfile",
    *(f"{_HELM}/{name}" for name in ("hexkv/Chart.yaml", "hexkv/values.yaml")),
    *(f"{_HELM}/{name}" for name in ("llm-d.yaml", "production-stack.yaml")),
]
"""Files that name the version of images and of the chart."""

_REQUIRING = [
    "contracts/hexkv/contracts/new_adapter/template/project/pyproject.toml.jinja",
    "docs/writing-an-adapter.md",
    "examples/acme-tape/pyproject.toml",
]
"""Files of packages with versions of their own, which require hexkv."""


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
    text, count = _OWN.subn(f'version = "{version}"', text)
    if count != 1:
        raise ValueError(f"there are {count} versions")
    return _requiring(text, version)


def rewritten(root: Path, version: str) -> dict[Path, str]:
    """Return the text of each file that names the version, with another *version*."""
    former = version_of((root / "pyproject.toml").read_text())
    named = re.compile(rf"(?<![\d.]){re.escape(former)}(?![\d.])")
    texts = {path: with_version(path.read_text(), version) for path in files(root)}
    for path in (root / name for name in _REQUIRING):
        texts[path] = _requiring(path.read_text(), version)
    for path in (root / name for name in _DEPLOYED):
        texts[path] = named.sub(version, path.read_text())
    return texts


def _requiring(text: str, version: str) -> str:
    major, minor, _ = version.split(".")
    span = f">={major}.{minor},<{major}.{int(minor) + 1}"
    return _OTHERS.sub(rf'\g<1>{span}"', text)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("give a version, such as 0.2.0")
    for path, text in rewritten(ROOT, sys.argv[1]).items():
        path.write_text(text)
