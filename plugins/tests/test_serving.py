"""Servers end by a signal whenever it comes."""

import os
import signal
import socket

import pytest

from hexkv.plugins.cli.serving import EndedBySignals


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def number(request):
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield request.param
    for number, handler in former.items():
        signal.signal(number, handler)


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


def test_a_server_that_ends_logs_the_signal_and_the_service_manager_knows_it(
    number, caplog, tmp_path, monkeypatch
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000")
        signals = EndedBySignals()
        signals.end(lambda: None)
        signals.ready(lambda: None)
        assert manager.recv(99).startswith(b"READY=1\nMAINPID=")
        assert manager.recv(99) == b"WATCHDOG=1"
        os.kill(os.getpid(), number)
        with caplog.at_level("INFO", "hexkv"):
            signals.report()
            signals.report("another process has its place")
        assert caplog.messages == [f"ends: {number.name}", "ends: another process has its place"]
        while (state := manager.recv(99)) != b"STOPPING=1":
            assert state == b"WATCHDOG=1"
