"""What ``make check`` runs, run by the tests: style and types hold for every file."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def passes(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_has_nothing_to_say():
    passes("ruff", "check", ".")


def test_every_file_is_formatted():
    passes("ruff", "format", "--check", ".")


@pytest.mark.thorough
def test_mypy_has_nothing_to_say():
    passes("mypy")


@pytest.mark.thorough
def test_the_examples_are_typed():
    scripts = sorted(str(path) for path in (ROOT / "examples").glob("*.py"))
    assert scripts
    passes("mypy", *scripts)  # at once: some import others beside them
    passes("mypy", "examples/acme-tape/acme_tape")
