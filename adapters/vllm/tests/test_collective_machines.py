"""Ranks that load together on machines of their own: addresses, slow links, and one cut off."""

from contextlib import ExitStack

import pytest

from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from machines.collective_member import MemberProcess
from machines.net_namespaces import machines

pytestmark = pytest.mark.thorough

MESSAGE = 4 << 20
"""Bytes: more than sockets take in before anybody has read them."""

MEETING = 240.0
"""Seconds in which members that were apart meet again: they try less and less often."""


@pytest.fixture
def places():
    with machines(3) as found:
        yield found


@pytest.fixture
def members(places):
    """One on each machine; they have met."""
    with ExitStack() as opened:
        made = [MemberProcess(places[0], 0, 3)]
        made += [MemberProcess(places[n], n, 3, made[0].address) for n in (1, 2)]
        for member in made:
            opened.callback(member.close)
        assert [member.hear() for member in made] == [True] * 3
        yield made


def passed_on(members, seconds):
    """One message from the first member to all: what each says of it."""
    for rank, member in enumerate(members):
        call = "receive" if rank else "send"
        member.ask(call, size=MESSAGE, seconds=seconds)
    return [member.hear() for member in members]


def all_whole(members):
    for member in members:
        member.ask("whole")
    said = [member.hear() for member in members]
    return all(one["whole"] for one in said)


def test_what_one_machine_sends_the_others_receive(members, places):
    for _ in range(3):
        assert all(said["right"] for said in passed_on(members, 60.0))
    places[0].slow(200_000_000)
    assert all(said["right"] for said in passed_on(members, 60.0))


def test_a_machine_that_is_cut_off_delays_nobody_past_the_deadline(members, places):
    """TCP itself goes on for a quarter of an hour, and who is asked here answers in a minute."""
    assert all(said["right"] for said in passed_on(members, 60.0))
    places[2].cut()
    said = passed_on(members, 1.0)
    assert not said[0]["right"], "it is noticed"
    assert not said[2]["right"]
    # From then on at once: nothing is sent by a group that is given up.
    assert not any(one["right"] for one in passed_on(members, 1.0))
    places[2].mend()
    patience = Deadline.after(SystemClock(), MEETING)
    while not all_whole(members):
        assert not patience.expired, "they did not meet again"
    assert all(said["right"] for said in passed_on(members, 60.0))


def test_a_link_that_is_too_slow_is_given_up_by_the_deadline(members, places):
    places[0].slow(8_000_000)
    assert not any(said["right"] for said in passed_on(members, 1.0))
