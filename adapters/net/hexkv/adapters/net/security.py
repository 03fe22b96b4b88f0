"""Who may connect to a server: a secret from a file, and addresses that take one."""

from __future__ import annotations

import os
import ssl
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


def check_exposure(host: str, secret: bytes, tls: ssl.SSLContext | None) -> None:
    """Nothing, where a server at *host* asks for a secret or certificates, or is this machine's.

    Raises:
        ConfigError: other machines could connect, and nothing keeps anybody out.
    """
    asks = tls is not None and tls.verify_mode == ssl.CERT_REQUIRED
    if not (secret or asks or is_local(host)):
        raise ConfigError(
            f"{host} can be reached from other machines: serving there takes a secret, or TLS"
            " that asks clients for certificates"
        )


def is_local(host: str) -> bool:
    """Whether only this machine can connect to *host*, an address."""
    return host == "::1" or host.startswith("127.")
