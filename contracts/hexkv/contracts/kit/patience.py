"""``pytest -p hexkv.contracts.kit.patience``: no test fails for being slow.

The time to run or to find an example depends on the machine, and breaks no promise. This is not
in a ``conftest.py`` at the root of a repository, because pytest would then take
``adapters/sglang/conftest.py`` for a part of SGLang.

A test that does not set the number of examples tries 25: a quarter of hypothesis's default. The
profile ``thorough`` (``--hypothesis-profile thorough``) tries twenty times as many.

An engine whose configuration sets no deadlines has those of :data:`DEADLINES`: the defaults are
for a machine that serves, and one that pauses for a second would miss them.
"""

from hypothesis import HealthCheck, settings

from hexkv.plugins.configuration.config import load

DEADLINES = {"lookup": 30.0, "retrieve": 30.0}
"""Seconds, by call."""

settings.register_profile(
    "patient",
    settings(),
    max_examples=25,
    deadline=None,
    suppress_health_check={*settings().suppress_health_check, HealthCheck.too_slow},
)
settings.register_profile("thorough", settings.get_profile("patient"), max_examples=500)
settings.load_profile("patient")
# For each call that gives no deadlines.
load.__kwdefaults__ = {**(load.__kwdefaults__ or {}), "defaults": {"deadlines": DEADLINES}}
