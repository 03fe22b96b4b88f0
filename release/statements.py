"""Writes the files published beside wheels and sdists: checksums, the input of attestations, notes.

    python release/statements.py dist

``SHA256SUMS`` is checked by ``sha256sum --check``. ``NAME.statement.json`` is the in-toto
statement about a file that a publisher signs for the index: PEP 740, predicate "publish".
``CHANGES.md`` is the section of the version in the changelog; without a tag, what the waiting
fragments make of it. Exit code 1 if the files are not all of the version of the tag at this commit,
or, without a tag, of one version; or if a tagged changelog lacks the section, or fragments wait.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

_PREDICATE = "https://docs.pypi.org/attestations/publish/v1"
_ROOT = Path(__file__).resolve().parents[1]
_FILE = re.compile(r"[\w.]+?-(\d+\.\d+\.\d+)(?:-py3-none-any\.whl|\.tar\.gz)")


def statement(path: Path) -> dict[str, object]:
    """Return the statement about one file."""
    subject = {"name": path.name, "digest": {"sha256": _digest(path)}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [subject],
        "predicateType": _PREDICATE,
        "predicate": None,
    }


def write(folder: Path, tag: str) -> list[Path]:
    """Write all of it for the files in *folder*. Return these.

    Raises:
        ValueError: a file is of another version than *tag*, ``v0.2.0``, or than others.
    """
    files = sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    versions = {found[1] for path in files if (found := _FILE.fullmatch(path.name))}
    if len(versions) != 1:
        raise ValueError(f"the files are of versions {', '.join(sorted(versions)) or 'none'}")
    if tag and versions != {tag.removeprefix("v")}:
        raise ValueError(f"the tag is {tag}, the files are of version {versions.pop()}")
    sums = "".join(f"{_digest(path)}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums)
    for path in files:
        text = json.dumps(statement(path), sort_keys=True) + "\n"
        (folder / f"{path.name}.statement.json").write_text(text)
    return files


def notes(root: Path, version: str, tag: str) -> str:
    """Return the changes of *version*.

    Raises:
        ValueError: *tag* is given, and the changelog is not complete.
    """
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)} .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    waiting = [path.name for path in (root / "changes").glob("*.*.md")]
    if tag and (waiting or not found):
        why = f"changes wait: {', '.join(waiting)}" if waiting else f"no section of {version}"
        raise ValueError(f"{why}; run make changelog VERSION={version} before the tag")
    if found:
        return found[0]
    draft = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version]
    done = subprocess.run(draft, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    tagged = subprocess.run(
        ["git", "describe", "--tags", "--exact-match", "--match", "v*"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    try:
        made = write(Path(sys.argv[1]), tagged)
        version = _FILE.fullmatch(made[0].name)
        assert version  # noqa: S101 - as write found it
        (Path(sys.argv[1]) / "CHANGES.md").write_text(notes(_ROOT, version[1], tagged))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(f"{len(made)} files{'' if tagged else ', not tagged: a rehearsal'}")  # noqa: T201
