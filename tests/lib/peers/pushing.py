"""Two nodes that are peers, one where prompts are computed and one where they are waited for."""

import json
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from hexkv.contracts.chunk_cache._base import LAYOUT, content, soon, specs
from nodes import FRAME, Node
from peers.peering import MOST, directory_of
from processes import held_port

_PATIENT = (
    "hexkv.peers.pushing.followed._LASTS",
    "hexkv.adapters.node.server.announced._LONGEST_SEARCH",
    "hexkv.adapters.node.client.announcing._ANSWER",
)
"""Seconds of the product after which a peer or a node that does not answer is not waited for."""

PREFILL, DECODE = "prefill", "decode"
"""What the nodes are called."""


def sections(name, own, other, *, frame=FRAME, memory=12, **settings):
    """Of the configuration of a node of memory that has a peer."""
    return {
        "tiers": [{"store": "memory", "budget": memory * frame}],
        "directory": directory_of(other) | {"name": name},
        "peers": {
            "channel": "tcp",
            "settings": {"listen": own, **settings},
            "serve": {"accept": True},
        },
    }


@contextmanager
def nodes(root, make=Node, *, slots=32, memory=12, frame=FRAME, **more):
    """The two, started; *make* is ``Node`` or ``NodeProcess``."""
    places = [f"127.0.0.1:{held_port()}" for _ in range(2)]
    found = [
        make(
            root / name,
            slots=slots,
            memory=memory,
            frame=frame,
            **sections(name, own, other, frame=frame, memory=memory) | more,
        )
        for name, own, other in zip((PREFILL, DECODE), places, places[::-1], strict=True)
    ]
    with ExitStack() as opened:
        if make is Node:  # of this process: busy machines are late, and none of these hangs
            for place in _PATIENT:
                opened.enter_context(patch(place, MOST))
        for one in found:
            opened.enter_context(one)
        yield found


def chunks(count, prefix="pushed"):
    """So many chunks of a namespace that says how they lie, as real ones do."""
    identity = json.dumps({"model": "pushed", "layout": LAYOUT.describe()})
    return [chunk._replace(identity=identity) for chunk in specs(count, prefix)]


def holds(client, some):
    """How many of some chunks a client gets, each checked byte by byte."""
    with client.hold(some, "check", soon()) as hold:
        hold.wait(soon())
        for lease, spec in zip(hold.leases, some, strict=True):
            assert lease is None or bytes(lease.payload) == content(spec)
        return sum(lease is not None for lease in hold.leases)
