"""Lines about what fails again and again: the first at once, then one a minute with a count."""

import logging

import pytest

from hexkv.contracts.doubles import ManualClock
from hexkv.core.notices import EVERY, READING, WRITING, Notices


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def notices(clock, caplog):
    caplog.set_level(logging.INFO, "hexkv")
    return Notices(logging.getLogger("hexkv"), "tier disk", clock)


def test_a_failure_that_repeats_is_one_line(notices, clock, caplog):
    for _ in range(100):
        notices.failed("write", "StoreError: Permission denied: /cache/ab/12.hexkv", 4)
        clock.advance(EVERY / 200)
    assert caplog.messages == [
        "tier disk: write failed: StoreError: Permission denied: /cache/ab/12.hexkv"
    ]
    for end in "ab":  # a long error is of the kind of its beginning
        notices.failed("read", "x" * 10_000_000 + end)
    assert len(caplog.messages) == 2


def test_a_minute_later_the_next_line_has_the_count(notices, clock, caplog):
    for _ in range(3):
        notices.failed("write", "full", 4)
    clock.advance(EVERY)
    notices.failed("write", "full", 4)
    assert caplog.messages[1:] == ["tier disk: write failed: full; 8 more since the last line"]


def test_another_cause_or_call_has_a_line_of_its_own(notices, caplog):
    for path in ("/a/1", "/b/2"):
        notices.failed("write", f"Permission denied: {path}")
        notices.failed("write", f"No space left on device: {path}")
        notices.failed("read", f"Permission denied: {path}")
    assert [message.partition(": /")[0] for message in caplog.messages] == [
        "tier disk: write failed: Permission denied",
        "tier disk: write failed: No space left on device",
        "tier disk: read failed: Permission denied",
    ]


def test_the_end_of_a_failure_is_one_line(notices, clock, caplog):
    for _ in range(3):
        notices.failed("write", "full")
    clock.advance(12.5)
    for _ in range(3):
        notices.works("write")
    assert caplog.messages[1:] == ["tier disk: write works again after 12.5 s and 3 failures"]


def test_a_failure_that_comes_and_goes_is_two_lines_a_minute(notices, clock, caplog):
    for _ in range(100):
        notices.failed("write", "full")
        notices.works("write")
    assert len(caplog.messages) == 2
    clock.advance(EVERY)
    notices.failed("write", "full")
    notices.works("write")
    assert caplog.messages[2:] == [
        "tier disk: write failed: full; 99 more since the last line",
        "tier disk: write works again after 0 s",
    ]


def test_a_store_that_does_not_answer_is_one_kind_whatever_finds_it(notices, clock, caplog):
    for what, outage in [("read", READING), ("write", WRITING), ("contains", READING)]:
        notices.failed(what, f"{what} is refused", 4, detail=" (4 of 4 chunks)", outage=outage)
    for direction in (READING, WRITING):
        notices.switched_off(direction, "1 s", "why")
        clock.advance(EVERY)
    notices.failed("write", "refused", outage=WRITING)
    notices.answers(READING, notices.unanswered - 1)  # it was under way before
    notices.answers(READING, notices.unanswered)
    notices.answers(WRITING, notices.unanswered)
    assert caplog.messages == [
        "tier disk: does not answer: read: read is refused (4 of 4 chunks)",
        "tier disk: is switched off for 1 s: why",
        "tier disk: does not answer: write: refused; 8 more since the last line",
        "tier disk: is back after 120 s and 14 failures",
    ]
    assert not notices.troubles


def test_no_trouble_is_known_while_nothing_fails(notices):
    assert not notices.troubles
    notices.failed("read", "one chunk", lasts=False)
    assert not notices.troubles
    notices.failed("write", "full")
    assert notices.troubles
    notices.works("write")
    assert not notices.troubles


def test_ever_new_kinds_are_bounded(notices):
    for number in range(1000):
        notices.failed("write", "x" * number)
    assert len(notices._kinds) <= 64


def test_causes_without_end_are_some_lines_a_minute_with_a_count(notices, clock, caplog):
    for _ in range(3):
        for number in range(1000):
            notices.failed(f"node {number}", "the directory is full")
    assert len(caplog.messages) <= 64
    clock.advance(EVERY)
    notices.failed("node 1", "the directory is full")
    assert caplog.messages[-1] == (
        "tier disk: node 1 failed: the directory is full; 2 more since the last line;"
        " 2808 more of other kinds"
    )


def test_what_fails_without_end_takes_bounded_memory(notices):
    for number in range(100_000):
        notices.failed(f"node {number}", "the directory is full")
    assert len(notices.troubles) <= 1024


def test_an_error_of_several_lines_is_one_line_of_the_log(notices, caplog):
    """A store's text could look like a line of another subject."""
    notices.failed("read", "refused\nhexkv: all is well\r\n")
    assert caplog.messages == ["tier disk: read failed: refused hexkv: all is well"]
