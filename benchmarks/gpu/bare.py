"""This repository on a machine where nothing of it is installed: one folder and one PYTHONPATH.

Uses the standard library alone. Distributions of the repository are announced by metadata that
is made from their pyproject.toml, so that entry points are found; what else is missing is unpacked
from wheels that ``make gpu-wheels`` fetched elsewhere. pip need not be there.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


class NotAWheel(Exception):
    """A file is none, or holds names that leave the folder."""


def paths(root: Path = ROOT) -> list[Path]:
    """Where the repository's packages lie, each with its part of the namespace ``hexkv``."""
    first = [root / name for name in ("ports", "core", "plugins", "contracts", "kernels")]
    return [*first, *(at.parent for at in _beside(root)), root]


def _beside(root: Path) -> list[Path]:
    """The projects of distributions in folders of theirs."""
    return sorted([*root.glob("adapters/*/pyproject.toml"), *root.glob("plugins/*/pyproject.toml")])


def environment(folder: Path, wheels: Path, root: Path = ROOT) -> dict[str, str]:
    """What to start Python with so that it finds everything; fills *folder* on the way."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in fitting(wheels):
        unpack(wheel, folder)
    if not _installed("hexkv"):
        announce(folder, root)
    found = [str(path) for path in (*paths(root), folder)]
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*found, *([before] if before else [])])}


def announce(folder: Path, root: Path = ROOT) -> None:
    """Write the metadata of every distribution of the repository to *folder*."""
    tops = sorted(root.glob("*/pyproject.toml"))
    for project in (root / "pyproject.toml", *tops, *_beside(root)):
        _announce(project, folder)


def _announce(project: Path, folder: Path) -> None:
    with project.open("rb") as file:
        said = tomllib.load(file)["project"]
    name, release = said["name"], said["version"]
    made = folder / f"{name.replace('-', '_')}-{release}.dist-info"
    made.mkdir(exist_ok=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    lines: list[str] = []
    for group, points in said.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{point} = {where}" for point, where in points.items()), ""]
    (made / "entry_points.txt").write_text("\n".join(lines))


def fitting(wheels: Path) -> Iterator[Path]:
    """Wheels in *wheels* for this interpreter, of distributions that are not here yet."""
    for wheel in sorted(wheels.glob("*.whl")):
        name, *_, python, abi, systems = wheel.stem.split("-")
        if fits(python, abi, systems) and not _installed(name.replace("_", "-")):
            yield wheel


def fits(python: str, abi: str, systems: str) -> bool:
    """True if a wheel of these tags runs here (PEP 425, on Linux)."""
    major, minor = sys.version_info[:2]
    here = f"cp{major}{minor}"
    if systems != "any":
        machine = platform.machine()
        known = [system for system in systems.split(".") if system.endswith(machine)]
        if not any("linux" in system and "musl" not in system for system in known):
            return False
    if {"py3", f"py{major}{minor}", here} & set(python.split(".")):
        return bool({"none", "abi3", here} & set(abi.split(".")))
    older = re.fullmatch(rf"cp{major}(\d+)", python)
    return abi == "abi3" and older is not None and int(older[1]) <= minor


def unpack(wheel: Path, folder: Path) -> None:
    """Lay the files of *wheel* into *folder*, unless they are there.

    Raises:
        NotAWheel: it is no archive, or a name in it leaves the folder.
    """
    name, release = wheel.stem.split("-")[:2]
    if (folder / f"{name}-{release}.dist-info").exists():
        return
    try:
        with zipfile.ZipFile(wheel) as packed:
            for member in packed.namelist():
                if not (folder / member).resolve().is_relative_to(folder.resolve()):
                    raise NotAWheel(f"{wheel.name}: {member} leaves the folder")
            packed.extractall(folder)
    except zipfile.BadZipFile as error:
        raise NotAWheel(f"{wheel.name}: {error}") from error


def missing(modules: tuple[str, ...], folder: Path) -> list[str]:
    """Which of *modules* neither this interpreter nor *folder* has."""
    return [
        name
        for name in modules
        if not (folder / name).exists()
        and not (folder / f"{name}.py").exists()
        and find_spec(name) is None
    ]


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
