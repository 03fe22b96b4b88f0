"""``make test`` stays a matter of minutes, and what it leaves out is a matter of choice."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depth import covering
from processes import ended, kill_session, signal_session, until

MOST = 3500
"""Items that it may have; what there is more of has the marker ``thorough``."""


def test_make_test_has_few_items(request):
    taken = [item for item in request.session.items if not left_out(item.iter_markers())]
    assert 1 <= len(taken) <= MOST


def left_out(marks):
    return any(mark.name in ("thorough", "gpu") for mark in marks)


COLUMNS = st.lists(st.integers(1, 6).map(range), min_size=1, max_size=4)


@given(columns=COLUMNS)
def test_a_matrix_is_whole_and_the_part_of_minutes_has_each_value(columns):
    rows = covering(*columns)
    assert [row.values for row in rows] == list(product(*columns))
    few = [row.values for row in rows if not left_out(row.marks)]
    assert len(few) <= max(map(len, columns))
    for number, column in enumerate(columns):
        assert {values[number] for values in few} == set(column)


def running(session):
    """The number of processes of a session that have not ended."""
    count = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, number = place.read_text().rpartition(")")[2].split()[:4]
            count += int(number) == session and state != "Z"
    return count


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the processes of a session")
def test_a_session_of_a_test_is_signalled_only_until_its_process_is_reaped(monkeypatch):
    process = subprocess.Popen(["sh", "-c", "sleep 1000 & exit 3"], start_new_session=True)
    sent, real = [], os.killpg  # noqa: TID251 - to count its calls
    monkeypatch.setattr(os, "killpg", lambda *row: (sent.append(row), real(*row)))
    until(lambda: ended(process))
    assert kill_session(process) == 3, "the code is that of its own end"
    until(lambda: running(process.pid) == 0)
    assert kill_session(process) == 3
    signal_session(process, signal.SIGSTOP)
    assert sent == [(process.pid, signal.SIGKILL)]


def test_no_fixture_outlives_its_module_by_mistake():
    """Without an ``__init__.py`` pytest takes a package's fixture for one of the whole session."""
    root = Path(__file__).parents[2]
    # Not through hidden folders: an environment has tens of thousands of files.
    files = [file for top in root.glob("[!.]*/") for file in top.rglob("*.py")]
    assert Path(__file__) in files
    wrong = re.compile(r"""scope=["']package""")
    assert [str(file) for file in files if wrong.search(file.read_text())] == []
