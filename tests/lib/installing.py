"""Wheels of this repository, and environments that have nothing but what they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT,
    *sorted(
        path.parent
        for pattern in ("*/pyproject.toml", "adapters/*/pyproject.toml", "plugins/*/pyproject.toml")
        for path in ROOT.glob(pattern)
    ),
]
"""Of each distribution."""

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def project(folder):
    """What a distribution says of itself."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def attempt(*command, cwd):
    """A command that sees nothing of this process's Python path."""
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHON", "HEXKV", "MAKE", "MFLAGS"))
    }
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run(*command, cwd, fails=False):
    """What such a command prints."""
    done = attempt(*command, cwd=cwd)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


def build(target, folders=FOLDERS):
    """A wheel of each distribution in *folders*, as ``make wheels`` builds them, by name."""
    where = " ".join(folder.relative_to(ROOT).as_posix() for folder in folders)
    run("make", "--silent", "wheels", f"WHEELS={target}", f"DISTS={where}", cwd=ROOT)
    found = wheels_in(target)
    assert len(found) == len(folders)
    return found


def wheels_in(folder):
    """The wheels that lie in *folder*, by the distribution's name."""
    return {canonicalize_name(path.name.partition("-")[0]): path for path in folder.glob("*.whl")}


def environment(home, wheels, *wanted):
    """The Python of an environment with *wanted*, of *wheels*, and what those say they need.

    Wheels are installed. What others' distributions are needed is that of this process, so it
    takes no network, and nothing else of this process can be imported.

    Args:
        home: an empty folder for it.
        wheels: by name.
        wanted: requirements, extras included.
    """
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    ours, others = needed(wheels, wanted)
    offline = ["--no-index", "--no-deps", *(wheels[name] for name in sorted(ours))]
    run(*PIP, "--python", python, "install", "--quiet", *offline, cwd=home)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    for name in others:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            there = packages / top
            if not there.exists():
                there.symlink_to(distribution.locate_file(top))
    return python


def needed(wheels, wanted):
    """Names of ours and of others' distributions that *wanted* stand for, with all they need."""
    ours, others, seen = set(), set(), set()
    todo = list(wanted)
    while todo:
        need = Requirement(todo.pop())
        name, extras = canonicalize_name(need.name), {"", *need.extras}
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        for extra in extras - {known for known_name, known in seen if known_name == name}:
            seen.add((name, extra))
            todo += [str(found) for found in _asked(name, extra, wheels)]
        (ours if name in wheels else others).add(name)
    return ours, others


def _asked(name, extra, wheels):
    """What a distribution needs for one of its extras; for none, without any."""
    if name in wheels:
        (source,) = metadata.distributions(name=name, path=[str(wheels[name])])
    else:
        source = metadata.distribution(name)
    for text in source.requires or ():
        need = Requirement(text)
        always = need.marker is None or need.marker.evaluate({"extra": ""})
        if always != bool(extra) and (
            need.marker is None or need.marker.evaluate({"extra": extra})
        ):
            need.marker = None
            yield need
