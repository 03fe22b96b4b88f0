"""Secrets and TLS contexts from files."""

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


def client_tls(authorities: str = "", certificate: str = "") -> ssl.SSLContext:
    """A client's context: the server must show a certificate for its name.

    Args:
        authorities: a file of those to trust instead of the system's.
        certificate: a file with the client's own certificate and key.

    Raises:
        ConfigError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        if certificate:
            context.load_cert_chain(certificate)
    except OSError as error:
        raise ConfigError(f"TLS cannot be set up: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_tls(certificate: str, authorities: str = "") -> ssl.SSLContext:
    """A server's context.

    Args:
        certificate: a file with its certificate and key.
        authorities: a file of those whose certificates clients must show, if any.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate)
        if authorities:
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise ConfigError(f"TLS cannot be set up: {error}") from error
    return context
