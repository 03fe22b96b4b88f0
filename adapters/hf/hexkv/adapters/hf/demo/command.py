"""The parent of the demo: starts the two processes, kills the first, judges the outcome."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from hexkv.adapters.hf.demo.outcome import Outcome
from hexkv.adapters.hf.demo.plan import CHUNK, DemoPlan, parse
from hexkv.plugins.cli.output import print_json
from hexkv.ports import HexKVError, InvalidRequest

STAGES = (
    # torch's threads wait without spinning: on busy cores they would keep each other from
    # working, which slows a short computation tenfold and a long one hardly.
    *("env", "OMP_WAIT_POLICY=PASSIVE"),
    *(sys.executable, "-m", "hexkv.adapters.hf.demo.stages"),
)


def main(arguments: Sequence[str], stages: Sequence[str] = STAGES) -> int:
    """Run the demo. Return 0 if its claims hold, else 1.

    Args:
        arguments: of the command line.
        stages: how a stage is started; followed by its name and the plan.

    Raises:
        InvalidRequest: the text or the model will not do.
    """
    options = _parser().parse_args(arguments)
    if options.tokens < CHUNK:
        raise InvalidRequest(f"--tokens must be at least {CHUNK}, one chunk")
    _check_model(options.model)
    text = _text(options.text)
    with _directory(options.dir, keep=options.keep) as directory, _Progress() as progress:
        (directory / "text").write_text(text, encoding="utf-8")
        plan = DemoPlan(
            options.model, str(directory / "text"), str(directory / "chunks"), options.tokens
        )
        outcome = play(plan, stages, progress)
    problems = outcome.problems()
    if options.json:
        print_json(outcome.as_json())
    else:
        outcome.show()
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201  # as the command line does
    return 1 if problems else 0


def play(plan: DemoPlan, stages: Sequence[str], progress: _Progress) -> Outcome:
    """Both processes, one after the other, with a kill in between.

    Raises:
        HexKVError: a process ended without its report.
    """
    with _Stage([*stages, "first", plan.to_json()], "1st process", progress) as stage:
        acknowledged = stage.until("acknowledged")
        stage.process.kill()
        killed = stage.process.wait() == -signal.SIGKILL
    progress.report("1st process: stored, and killed with SIGKILL")
    _evict(Path(plan.chunks))
    with _Stage([*stages, "second", plan.to_json()], "2nd process", progress) as stage:
        runs = {name: stage.until("measured") for name in ("without", "disk", "memory")}
    return Outcome(plan, acknowledged, runs, killed)


class _Stage:
    """A process that reports in JSON lines; it does not outlive the block."""

    def __init__(self, command: Sequence[str], title: str, progress: _Progress) -> None:
        self._title = title
        self._progress = progress
        progress.report(f"{title}: importing torch and transformers")
        self.process = subprocess.Popen(  # noqa: S603  # our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def until(self, event: str) -> Mapping[str, Any]:
        """Wait for *event*, showing the steps on the way."""
        if self.process.stdout is None:
            raise HexKVError(f"the {self._title} has no output")
        for line in self.process.stdout:
            message = dict(parse(line))
            kind = message.pop("event", None)
            if kind == event:
                return message
            if kind == "step":
                self._progress.report(f"{self._title}: {message['text']}")
            elif kind == "refused":
                raise InvalidRequest(str(message["text"]))
        raise HexKVError(f"the {self._title} of the demo ended before it had {event}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
        self.process.communicate()


class _Progress:
    """Shows the progress on the standard error stream: a spinner, or lines in a pipe."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._status = self._console.status("") if self._console.is_terminal else None

    def report(self, text: str) -> None:
        if self._status is None:
            self._console.print(text, soft_wrap=True)
        else:
            self._status.update(text)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


@contextmanager
def _directory(parent: Path | None, *, keep: bool) -> Iterator[Path]:
    """A new directory under *parent*, gone afterwards unless it is to be kept.

    Raises:
        InvalidRequest: none can be made there.
    """
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="hexkv-demo-", dir=parent))
    except OSError as error:
        raise InvalidRequest(f"cannot make a directory for the demo: {error}") from error
    try:
        yield directory
    finally:
        if keep:
            print(f"kept: {directory}", file=sys.stderr)  # noqa: T201  # not part of the output
        else:
            shutil.rmtree(directory)


def _check_model(model: str) -> None:
    """Check that a name that looks like a folder is one.

    Raises:
        InvalidRequest: it is not.
    """
    looks_like_one = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_like_one and not Path(model).is_dir():
        raise InvalidRequest(f"--model {model}: there is no such folder")


def _text(path: Path | None) -> str:
    """The text to read: a file, or the source of hexkv's own ports.

    Raises:
        InvalidRequest: the file is not one of text.
    """
    if path is None:
        sources = [entry for entry in files("hexkv.ports").iterdir() if entry.name.endswith(".py")]
        return "\n".join(
            source.read_text(encoding="utf-8") for source in sorted(sources, key=lambda s: s.name)
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read --text {path}: {error}") from error


def _evict(chunks: Path) -> None:
    """Drop the chunks from the page cache, so that a hit from disk comes from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in chunks.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hexkv demo",
        description="One process computes a long prompt, stores its KV and is killed. The next "
        "one answers the same prompt without the cache, from disk and from memory.",
    )
    add = parser.add_argument
    add(
        "--model",
        default="",
        help="name or path of a model (default: a small one of ours)",
    )
    add("--tokens", type=int, default=4096, help="length of the prefix (default: %(default)s)")
    add("--text", type=Path, help="a long text to read (default: the source of hexkv's ports)")
    add("--dir", type=Path, help="where to make the demo's own directory")
    add("--keep", action="store_true", help="keep that directory")
    add("--json", action="store_true", help="print JSON")
    return parser
