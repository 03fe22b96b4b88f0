"""Servers end by a signal whenever it comes."""

import os
import signal

import pytest

from hexkv.plugins.cli.serving import EndedBySignals


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def number(request):
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield request.param
    for number, handler in former.items():
        signal.signal(number, handler)


def test_a_signal_that_comes_while_a_server_opens_ends_it_once_it_could_serve(number):
    signals, stopped = EndedBySignals(), []
    os.kill(os.getpid(), number)
    assert not stopped
    signals.end(lambda: stopped.append(True))
    assert stopped == [True]


def test_a_signal_ends_who_serves(number):
    signals, stopped = EndedBySignals(), []
    signals.end(lambda: stopped.append(True))
    assert not stopped
    os.kill(os.getpid(), number)
    assert stopped == [True]


def test_a_server_that_ends_logs_the_signal(number, caplog):
    signals = EndedBySignals()
    signals.end(lambda: None)
    os.kill(os.getpid(), number)
    with caplog.at_level("INFO", "hexkv"):
        signals.report()
        signals.report("another process has its place")
    assert caplog.messages == [f"ends: {number.name}", "ends: another process has its place"]
