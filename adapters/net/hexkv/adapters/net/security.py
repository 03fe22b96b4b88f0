"""Access to a server: a secret from a file, and addresses that require one."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Sequence
from typing import TypeAlias

from hexkv.adapters.net.renewing import Renewing
from hexkv.ports import ConfigError

_SHORTEST = 16


class RotatedSecret:
    """The secret in a file, as it is now: a handshake reads it anew if the file has changed.

    A file beside it, with ``.also`` at the end of its name, may hold a second secret that servers
    accept, so that a secret can be replaced on one machine after the other.
    """

    def __init__(self, path: str) -> None:
        """Read the secret in *path*.

        Raises:
            ConfigError: it cannot be read, others can read it too, or it is easily guessed.
        """
        files = [path, f"{path}.also"]

        def read() -> tuple[bytes, ...]:
            return tuple(_read_secret(file) for file in files[: 1 + os.path.exists(files[1])])

        self._secrets = Renewing(f"the secret in {path}", files, read)

    def current(self) -> bytes:
        """Return the secret that this process proves that it knows."""
        return self._secrets.current()[0]

    def accepted(self) -> Sequence[bytes]:
        """Return the secrets of which clients must know one."""
        return self._secrets.current()


SecretSource: TypeAlias = bytes | RotatedSecret
"""A secret that a configuration or a file has; empty bytes for none."""


def current(secret: SecretSource) -> bytes:
    """Return the secret that this process proves that it knows."""
    return secret if isinstance(secret, bytes) else secret.current()


def accepted(secret: SecretSource) -> Sequence[bytes]:
    """Return the secrets of which clients must know one."""
    return [secret] if isinstance(secret, bytes) else secret.accepted()


def _read_secret(path: str) -> bytes:
    """Return the secret in a file that only this user, or a group that root gave it, can read.

    Raises:
        ConfigError: it cannot be read, others can read it too, or it is easily guessed.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            secret = file.read(4096).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"the secret in {path} cannot be read: {error.strerror}") from error
    if is_exposed(found, os.geteuid()):
        raise ConfigError(f"{path} can be read by others than its owner: chmod 600 it")
    if len(secret) < _SHORTEST:
        raise ConfigError(f"the secret in {path} must have {_SHORTEST} bytes at least")
    return secret


def is_exposed(file: os.stat_result, user: int) -> bool:
    """True if others than *user* may read or change the file: any group or other bit is set.

    One exception. A volume of secrets in Kubernetes belongs to root, and a process of another user
    reads it through the group of the pod (``fsGroup``, mode 0440): it cannot own the file. So the
    group of a file of root may read it, and nothing else.
    """
    allowed = stat.S_IRGRP if file.st_uid == 0 != user else 0
    return bool(stat.S_IMODE(file.st_mode) & 0o077 & ~allowed)


def check_exposure(host: str, secret: SecretSource, tls: ssl.SSLContext | None) -> None:
    """Check that a server at *host* requires a secret or certificates, or is local.

    Raises:
        ConfigError: other machines could connect without any check.
    """
    if not (secret or asks_for_certificates(tls) or is_local(host)):
        raise ConfigError(
            f"{host} can be reached from other machines: serving there takes a secret, or TLS"
            " that asks clients for certificates"
        )


def asks_for_certificates(tls: ssl.SSLContext | None) -> bool:
    """True if connections with *tls* begin with a client's certificate."""
    return tls is not None and tls.verify_mode == ssl.CERT_REQUIRED


def is_local(host: str) -> bool:
    """True if only this machine can connect to *host*, an address."""
    return host == "::1" or host.startswith("127.")
