"""``pytest -p hexkv.contracts.patience``: no test fails for being slow.

How long an example takes, or finding one, tells of the machine, and breaks no promise. No
``conftest.py`` at the root of a repository: with it, pytest takes ``adapters/sglang/conftest.py``
for a part of SGLang.

Where a test leaves their number open, 25 examples are tried: a quarter of what hypothesis tries
by itself. The profile ``thorough`` (``--hypothesis-profile thorough``) tries twenty times as many.

An engine whose configuration leaves its deadlines open has those of :data:`DEADLINES`: the usual
ones are for a machine that serves, and one that stands still for a second would miss them.
"""

from hypothesis import HealthCheck, settings

from hexkv.plugins.config import load

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
# Of each call that gives no defaults.
load.__kwdefaults__ = {**(load.__kwdefaults__ or {}), "defaults": {"deadlines": DEADLINES}}
