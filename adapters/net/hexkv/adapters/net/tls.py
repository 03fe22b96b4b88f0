"""TLS contexts, from the files that settings name.

A context is made anew when one of its files changes: connections that begin then use the new
certificates and authorities, and those that exist go on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hexkv.adapters.net.renewing import Renewing
from hexkv.ports import ConfigError


class RotatedContext(ssl.SSLContext):
    """A context that is made anew when its files have changed."""

    _made: Renewing[ssl.SSLContext]

    def __new__(cls, what: str, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> Self:
        """Return one that *make* makes of *files*; *what* names it in log lines.

        Raises:
            ConfigError: the files cannot be used.
        """
        renewing = Renewing(what, [file for file in files if file], make)
        first = renewing.current()
        self = super().__new__(cls, first.protocol)
        # For those who look at them: connections get those of the context that is made of files.
        self.check_hostname = first.check_hostname
        self.verify_mode = first.verify_mode
        self.minimum_version = first.minimum_version
        self._made = renewing
        return self

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Return a connection by the files as they are now."""
        return self._made.current().wrap_socket(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Trust:
    """A client's certificates, and those by which it verifies its server."""

    authorities: str = ""
    """File of the certificates that sign servers'; empty for the system's."""

    certificate: str = ""
    """File of the client's own certificate, and of its key where *key* is empty."""

    key: str = ""
    verify: bool = True
    """True if a server's certificate must be signed and have the server's name."""

    newest: bool = False
    """Accept TLS 1.3 only, where both ends are ours."""

    def context(self, *, setting: str = "tls_ca") -> ssl.SSLContext:
        """Return the context of a client.

        Args:
            setting: the name of the authorities in a configuration, for messages.

        Raises:
            ConfigError: a file cannot be used.
        """
        files = [self.authorities, self.certificate, self.key]
        return RotatedContext("the certificates of a client", files, lambda: self._made(setting))

    def _made(self, setting: str) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
        except OSError as error:
            raise ConfigError(f"{setting} {self.authorities!r}: {error}") from error
        try:
            if self.certificate:
                # Without a password, so that a locked key is an error instead of a prompt.
                context.load_cert_chain(self.certificate, self.key or None, password=b"")
        except OSError as error:
            raise ConfigError(f"tls_certificate {self.certificate!r}: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.newest:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


def server_context(certificate: str, authorities: str = "") -> ssl.SSLContext:
    """Return the context of a server, which speaks TLS 1.3 only.

    Args:
        certificate: a file with its certificate and key.
        authorities: a file of the authorities that must have signed clients' certificates, if any.

    Raises:
        ConfigError: a file cannot be used.
    """
    files = [certificate, authorities]
    return RotatedContext(
        "the certificates of a server", files, lambda: _made(certificate, authorities)
    )


def _made(certificate: str, authorities: str) -> ssl.SSLContext:
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
