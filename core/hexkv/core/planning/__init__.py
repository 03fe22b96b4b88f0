"""What a tier of some size would find, under which policy: traces replayed."""

from hexkv.core.planning.replay import Replay, optimal, replay, unlimited
from hexkv.core.planning.trace import BadTrace, Request, read_mooncake

__all__ = ["BadTrace", "Replay", "Request", "optimal", "read_mooncake", "replay", "unlimited"]
