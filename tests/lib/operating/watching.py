"""Traffic and faults under the eyes of a real Prometheus: what fires is what should."""

import threading
import time
from itertools import count, cycle

import yaml

from engines.vllm.vllm_frames import damage, frames
from hexkv.contracts.chunk_cache._base import soon
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from operating.monitoring import generator, prometheus, shortened
from processes import until

PATIENCE = 600.0
"""Seconds after which an alert does not fire any more."""


def tiers(disk, redis, prefix):
    """Of a node: Redis's breaker stays open for as long as a test lasts."""
    once = {"failures": 1, "pause": 600.0, "longest_pause": 600.0}
    return [
        {"store": "memory"},
        {"store": "disk", "settings": {"root": str(disk)}},
        {
            "store": "redis",
            "settings": {"url": redis.url, "prefix": prefix},
            "breaker": once,
            "retries": 0,
        },
    ]


class Traffic:
    """Asks for one prompt after the other, by the name that *chosen* gives, from a thread."""

    def __init__(self, ask):
        self.chosen = cycle(["greeting", "manual", "contract"])
        self.asked = 0
        self._ask = ask
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()

    def _run(self):
        while not self._ending.wait(0.2):
            self._ask(next(self.chosen))
            self.asked += 1


def watched(ask, node, redis, places, disk, folder, minute):
    """What fires while *ask* is called with names of prompts, and things go wrong.

    Args:
        ask: has an engine over *node* compute or load the prompt of a name.
        node: with :func:`tiers`.
        redis: the third of these.
        places: where ``node`` and ``vllm``, the engine, show their numbers.
        disk: the folder of the second.
        folder: for Prometheus.
        minute: how many seconds are one to the rules; a day has forty of them.
    """
    healthy = 60 * minute
    began = time.monotonic()
    rules = shortened(yaml.safe_load(generator().rules())["groups"], minute, 40 * minute)
    with prometheus(folder, places, rules) as watching, Traffic(ask) as traffic:

        def fires(*alert):
            patience = Deadline.after(SystemClock(), PATIENCE)
            while alert not in watching.alerts():
                assert not patience.expired, alert
                threading.Event().wait(0.5)

        threading.Event().wait(healthy)
        assert traffic.asked > 10
        assert watching.ever(healthy) == set()
        # A disk that gives back something else than was put there.
        for file in frames(disk):
            damage(file)
        client = node.client()
        assert client.clear(None, ["memory"], soon()).chunks
        fires("HexKVDamagedChunks", "node", "disk")
        # A store that is gone, while what is asked for is new.
        redis.kill()
        traffic.chosen = (f"new {number}" for number in count())
        fires("HexKVTierOff", "node", "redis")
        fires("HexKVNotStored", "node", "redis")
        fires("HexKVHitRatioFell", "vllm", "")
        # A node that is gone: requests are computed, and the engine's cache takes no calls.
        client.close()
        asked = traffic.asked
        node.kill()
        fires("HexKVDown", "node", "")
        fires("HexKVClosed", "vllm", "")
        until(lambda: traffic.asked > asked)
        node.start()
        until(lambda: ("HexKVClosed", "vllm", "") not in watching.alerts())
        lasted = round(time.monotonic() - began)
        fired = watching.ever(lasted)
        expected = {
            "HexKVDamagedChunks",
            "HexKVTierOff",
            "HexKVNotStored",
            "HexKVHitRatioFell",
            "HexKVDown",
            "HexKVClosed",
        }
        assert fired == expected, fired ^ expected
