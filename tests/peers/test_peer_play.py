"""Whatever peers and directories do: no wrong byte, no late call, and all comes again."""

import pytest

from hexkv.adapters.peer.remotes import Remote
from hexkv.core.frames.codec import FrameCodec
from hexkv.ports import Deadline
from peers.peer_play import PeerPlay

pytestmark = pytest.mark.thorough


def play(seed, steps):
    playing = PeerPlay(seed)
    for number in range(steps):
        playing.step()
        if number % 200 == 199:
            playing.heal()
    playing.heal()
    return playing


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_steps_with_peers_that_die_freeze_crawl_and_lie(seed):
    done = play(seed, 10_000)
    assert done.faults > 1000
    assert done.hits > 1000
    assert done.damaged > 10


def test_frames_that_nobody_verifies_are_found_out(monkeypatch):
    monkeypatch.setattr(FrameCodec, "open", lambda *_: None)
    with pytest.raises(AssertionError, match="wrong KV"):
        play(0, 2000)


def test_who_waits_as_long_as_it_likes_is_found_out(monkeypatch):
    def until(remote, size, deadline, *, others):
        return Deadline.after(deadline.clock, 2.0)

    monkeypatch.setattr(Remote, "until", until)
    with pytest.raises(AssertionError, match="beyond the deadline"):
        play(0, 2000)


def test_who_leaves_peers_alone_for_good_is_found_out(monkeypatch):
    monkeypatch.setattr(Remote, "off", property(lambda remote: remote._failures > 0))
    with pytest.raises(AssertionError, match="does not come back"):
        play(0, 2000)
