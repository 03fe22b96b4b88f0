"""Servers end by a signal whenever it comes."""

import logging
import os
import signal

import pytest

from hexkv.plugins.cli.serving import EndedBySignals, shown_listeners


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


def test_a_command_says_where_it_listens_and_who_may_ask(capsys):
    """On stderr, while it serves; what it prints is for programs."""
    log = logging.getLogger("hexkv.listening")
    with shown_listeners():
        log.info("listening at %s", "here")
    log.info("listening at %s", "there")
    assert capsys.readouterr() == ("", "listening at here\n")
