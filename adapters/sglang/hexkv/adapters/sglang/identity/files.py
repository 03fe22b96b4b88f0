"""The files that a server loaded its model from, with their content at that time.

Files can be replaced while a server runs. So they are noted before a model is loaded from them,
and are digested later only if they are still the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hexkv.kernels.weights import digest_of, stamp_of
from hexkv.ports import ConfigError


class Files:
    """The files that a server loaded its model from, as they were then."""

    def __init__(self) -> None:
        self.loaded = False
        """True once a model was loaded in this process, with a note of its files."""

        self._places: dict[tuple[str, str], Path] = {}
        self._stamps: dict[Path, str] = {}

    def note(self, found: Iterable[tuple[str, str, Path | None]]) -> None:
        """Note each argument, its value, and the place that it names. The first note counts."""
        for argument, value, place in found:
            if place is not None and (argument, value) not in self._places:
                self._places[argument, value] = place
                self._stamps.setdefault(place, stamp_of(place))

    def place(self, argument: str, value: str, now: Path | None) -> Path | None:
        """The place that an argument named when the server started; without a note, *now*."""
        return self._places.get((argument, value), now)

    def digest(self, place: Path, advice: str = "") -> str:
        """A digest of the tensors that the server loaded from *place*.

        Raises:
            ConfigError: the files there were replaced, change during the call, or cannot be read.
                The message ends with *advice*.
        """
        advice = f"restart the server{advice}"
        try:
            before = stamp_of(place)
            if self._stamps.get(place, "" if self.loaded else before) != before:
                raise ConfigError(
                    f"the files of {place} were replaced since the server loaded them, so"
                    f" its weights are unknown: {advice}"
                )
            digest = digest_of(place)
            if stamp_of(place) != before:
                raise ConfigError(f"the files of {place} change while they are read: {advice}")
        except OSError as error:
            raise ConfigError(f"the weights in {place} cannot be read: {error}") from error
        return digest


FILES = Files()
"""The files of this process's model."""
