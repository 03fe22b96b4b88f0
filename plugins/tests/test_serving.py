"""Servers end by a signal whenever it comes."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Semaphore

import pytest

from hexkv.plugins.cli import serving
from hexkv.plugins.cli.serving import EndedBySignals

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers():
    former = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_server_also_one_that_does_not_serve_yet(number):
    serving, stopped = EndedBySignals(), []
    serving.end(lambda: stopped.append("serving"))
    assert not stopped
    os.kill(os.getpid(), number)
    assert stopped == ["serving"]
    opening = EndedBySignals()
    os.kill(os.getpid(), number)
    assert stopped == ["serving"]
    opening.end(lambda: stopped.append("opening"))
    assert stopped == ["serving", "opening"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_server_that_ends_logs_the_signal_and_the_service_manager_knows_it(
    number, caplog, tmp_path, monkeypatch
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, ThreadPoolExecutor(1) as one:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        # The manager reads all the time: its queue holds ten words of a watchdog of a millisecond.
        read = one.submit(lambda: list(iter(lambda: manager.recv(99), b"STOPPING=1")))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000")
        signals, worked = EndedBySignals(), Semaphore(0)
        signals.end(lambda: None)
        signals.ready(worked.release)
        assert worked.acquire(timeout=60)
        assert worked.acquire(timeout=60)  # the first word is sent
        os.kill(os.getpid(), number)
        with caplog.at_level("INFO", "hexkv"):
            signals.report()
            signals.report("another process has its place")
        assert caplog.messages == [f"ends: {number.name}", "ends: another process has its place"]
        ready, *others = read.result(60)
        assert ready.startswith(b"READY=1\nMAINPID=")
        assert set(others) == {b"WATCHDOG=1"}


def test_a_service_manager_that_reads_nothing_keeps_no_server_running(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
            other.setblocking(False)
            while True:  # until its queue is full
                other.sendto(b"a word of another", str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setattr(serving, "_PATIENCE", 0.001)
        EndedBySignals().report()
