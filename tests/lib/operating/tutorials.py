"""Tutorials as their readers go through them: files, commands, and what these print.

``pip install`` at the beginning of a page is its environment. A block of code is the file that its
first line names. In a ``console`` block, lines that begin with ``$`` are commands, and those below
are in their output, in this order; ``...`` stands for anything. A command that ends with ``&`` runs
until the end, and the next one comes after its lines.
"""

import os
import re
import shlex
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from functools import partial

from processes import until

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def wanted(text):
    """The requirements that a page installs."""
    return shlex.split(re.search(r"^    pip install (.*)$", text, re.MULTILINE)[1])


def play(text, folder, python, **env):
    """Do all of it in *folder*, with the commands of *python*'s environment. Return the outputs."""
    names = ("PYTHON", "HEXKV", "VLLM")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(names)}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    clean |= {"PATH": path, "HEXKV_DEADLINES__LOOKUP": "60"} | env
    said = []
    with ExitStack() as running:
        for language, code in FENCE.findall(text):
            if language != "console":
                (folder / re.match(r"# (\S+)\n", code)[1]).write_text(code)
                continue
            for command, lines in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
                log = folder / f"{len(said)}.log"
                if command.endswith(" &"):
                    line = command.removesuffix(" &")
                    process = running.enter_context(started(line, folder, log, clean))
                    here = partial(shows, log, lines)
                    until(lambda at=process, here=here: here() or at.poll() is not None, 600)
                else:
                    with log.open("wb") as out:
                        bash = ["bash", "-euo", "pipefail", "-c", command]
                        done = subprocess.run(
                            bash, cwd=folder, env=clean, stdout=out, stderr=out, check=False
                        )
                    assert done.returncode == 0, f"{command}: {log.read_text()}"
                assert shows(log, lines), f"{command}: {log.read_text()}"
                said.append(log.read_text())
    return said


def shows(log, lines):
    """Whether *lines* are in the output so far."""
    found = log.read_text(errors="replace")
    for line in lines.splitlines():
        pattern = ".*".join(map(re.escape, line.split("...")))
        if not (here := re.search(rf"^{pattern}$", found, re.MULTILINE)):
            return False
        found = found[here.end() :]
    return True


@contextmanager
def started(line, folder, log, env):
    """A command that runs until it is ended in order."""
    with log.open("wb") as out:
        bash = ["bash", "-c", f"exec {line}"]
        process = subprocess.Popen(bash, cwd=folder, env=env, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
