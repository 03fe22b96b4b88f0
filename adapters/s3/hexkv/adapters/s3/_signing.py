"""AWS Signature Version 4, which authenticates requests.

Bodies are not signed (``UNSIGNED-PAYLOAD``): a digest of 32 MiB costs more than sending them,
and the core verifies every frame that it reads.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

UNSIGNED = "UNSIGNED-PAYLOAD"


class Credentials(NamedTuple):
    """The access keys of the client. Never printed: they are secrets."""

    access_key: str
    secret_key: str
    token: str = ""
    """Of a temporary session; empty for permanent keys."""

    def __repr__(self) -> str:
        return "Credentials(...)"


class Scope(NamedTuple):
    """The scope of a signature."""

    day: str
    """``YYYYMMDD``, in UTC."""

    region: str
    service: str = "s3"

    def __str__(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


def query_of(parameters: Mapping[str, str]) -> str:
    """The query string of *parameters*, in the order and encoding of the signature."""
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(v, safe="-_.~")) for name, v in parameters.items()
    )
    return "&".join([f"{name}={value}" for name, value in pairs])


def signature(
    key: bytes,
    scope: Scope,
    when: str,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload: str = UNSIGNED,
) -> str:
    """The signature of a request, in hexadecimal.

    Args:
        key: from :func:`signing_key`.
        scope: of *key*.
        when: ``YYYYMMDDTHHMMSSZ``, as in the request.
        method: in capitals.
        path: percent-encoded.
        query: from :func:`query_of`.
        headers: the signed ones: names in lower case, sorted.
        payload: SHA-256 of the body in hexadecimal, or ``UNSIGNED-PAYLOAD``.
    """
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    request = f"{method}\n{path}\n{query}\n{lines}\n{';'.join(headers)}\n{payload}"
    digest = sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{digest}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def signing_key(secret: str, scope: Scope) -> bytes:
    """The key that signs within *scope*."""
    key = f"AWS4{secret}".encode()
    for part in (*scope, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class Signer:
    """Signs requests to one host. Safe from any thread."""

    def __init__(self, region: str, authority: str) -> None:
        self._region = region
        self._authority = authority
        self._last: tuple[Credentials, Scope, bytes] | None = None

    def headers(
        self, credentials: Credentials, now: float, method: str, path: str, query: str
    ) -> dict[str, str]:
        """The headers that authenticate a request of *credentials*, including ``Host``.

        Args:
            credentials: the client's keys.
            now: wall-clock seconds.
            method: in capitals.
            path: percent-encoded.
            query: from :func:`query_of`.
        """
        when = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = Scope(when[:8], self._region)
        signed = {"host": self._authority, "x-amz-content-sha256": UNSIGNED, "x-amz-date": when}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        proof = signature(self._key(credentials, scope), scope, when, method, path, query, signed)
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={';'.join(signed)}, Signature={proof}"
        )
        return signed

    def _key(self, credentials: Credentials, scope: Scope) -> bytes:
        # One tuple, replaced as a whole: a thread that loses a race derives the key once more.
        last = self._last
        if last is None or last[:2] != (credentials, scope):
            last = self._last = (credentials, scope, signing_key(credentials.secret_key, scope))
        return last[2]
