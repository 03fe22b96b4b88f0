"""Wheels of this repository, and environments that have nothing but what they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
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


def made(config, target, folders=FOLDERS):
    """The wheels that ``--wheels`` has, as ``make release`` made them, or else new ones."""
    given = config.getoption("--wheels")
    if not given:
        return build(target, folders)
    found = wheels_in(Path(given))
    assert len(found) == len(FOLDERS), f"{given} has {len(found)} wheels of {len(FOLDERS)}"
    return found


def wheels_in(folder):
    """The wheels that lie in *folder*, by the distribution's name."""
    return {canonicalize_name(path.name.partition("-")[0]): path for path in folder.glob("*.whl")}


def environment(home, wheels, *wanted, python=sys.executable):
    """The Python of an environment with *wanted*, of *wheels*, and what those say they need.

    pip installs from the folders of the wheels, which have nothing else. Others' distributions that
    these need are linked from *python*'s: it takes no network, and nothing else can be imported.

    Args:
        home: an empty folder for it.
        wheels: by name.
        wanted: requirements, extras included.
        python: has the others' distributions. If it is another one than this, it lends all of them.
    """
    run(python, "-m", "venv", "--without-pip", home, cwd=home.parent)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    if python == sys.executable:
        tops = {
            distribution.locate_file(top)
            for distribution in map(metadata.distribution, needed(wheels, wanted)[1])
            for top in {file.parts[0] for file in distribution.files or ()}
            if top not in ("..", "__pycache__")
        }
    else:
        (theirs,) = Path(python).parent.parent.glob("lib/python3*/site-packages")
        tops = {top for top in theirs.iterdir() if "hexkv" not in top.name}
    for top in tops:
        (packages / top.name).symlink_to(top)
    found = {f"--find-links={wheel.parent}" for wheel in wheels.values()}
    offline = ["install", "--quiet", "--no-index", *sorted(found)]
    run(*PIP, "--python", home / "bin" / "python", *offline, *wanted, cwd=home)
    return home / "bin" / "python"


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
