"""The secret of a server and its clients, from a file."""

from __future__ import annotations

import os
import stat

from hexkv.ports import ConfigError

_SHORTEST = 16


def read_secret(path: str) -> bytes:
    """The secret in a file that nobody but its owner can read.

    Raises:
        ConfigError: it cannot be read, others can read it too, or it is easily guessed.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(4096).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"the secret in {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others than its owner: chmod 600 it")
    if len(secret) < _SHORTEST:
        raise ConfigError(f"the secret in {path} must have {_SHORTEST} bytes at least")
    return secret
