"""Moves objects with awscrt's client: parts, TLS and connections in C.

awscrt passes bodies in pieces on threads of its own. Its requests have no deadline, so each call
stops waiting at its own, and callbacks after that no longer reach the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.tls import Trust
from hexkv.adapters.s3._answers import Absent, Changed, Reply, refusal
from hexkv.adapters.s3._bodies import Allocate, Parts
from hexkv.adapters.s3._signing import Credentials
from hexkv.adapters.s3.address import Endpoint
from hexkv.ports import (
    ConfigError,
    Deadline,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    StoreError,
    StoreUnreachable,
)

if TYPE_CHECKING:
    from awscrt.http import HttpRequest
    from awscrt.s3 import S3Client, S3Request, S3RequestType

_LEAST_MEMORY = 256 << 20
_TRIES = 3
"""The number of attempts to read an object that is replaced while its parts are read."""


class Empty(Exception):
    """The object has no bytes, so no range of it exists."""


class Source:
    """A body to send, from which awscrt reads the pieces of *frame*."""

    def __init__(self, frame: memoryview) -> None:
        self._frame: memoryview | None = frame
        self._place = 0
        self._lock = Lock()

    def readinto(self, into: memoryview) -> int:
        """Copy the next bytes and return their number; 0 at the end."""
        with self._lock:
            if self._frame is None:
                raise BrokenPipeError("no caller waits for this upload")
            piece = self._frame[self._place : self._place + len(into)]
            into[: len(piece)] = piece
            self._place += len(piece)
            return len(piece)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; awscrt calls it only if there is no :meth:`readinto`."""
        with self._lock:
            left = b"" if self._frame is None else self._frame[self._place :]
            piece = bytes(left if size < 0 else left[:size])
            self._place += len(piece)
            return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position and return it."""
        with self._lock:
            size = 0 if self._frame is None else len(self._frame)
            self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place}.get(whence, size)
            return self._place

    def let_go(self) -> None:
        """Release the frame, which is not read from now on."""
        with self._lock:
            self._frame = None


class ReceivedBody:
    """A body to receive, into memory that is requested once its headers give the size."""

    def __init__(self, room: Allocate) -> None:
        self._room = room
        self._into: memoryview | None = None
        self._got = 0
        self._lock = Lock()
        self._over = False
        self.refused = False
        self.size: int | None = None

    def on_headers(self, status_code: int, headers: Sequence[tuple[str, str]]) -> None:
        """Request the memory; awscrt calls this first."""
        if status_code not in (200, 206):
            return
        found = {name.lower(): value for name, value in headers}
        length = found.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise StoreUnreachable("an object that does not say its size")
        with self._lock:
            if self._over:
                raise BrokenPipeError("no caller waits for this object")
            self.size = int(length)
            self._got = 0
            self._into = self._room(self.size)
            self.refused = self._into is None
        if self.refused:
            raise BufferError("there is no room for this object")

    def on_body(self, chunk: bytes, offset: int) -> None:
        """Copy a piece to its place; awscrt calls this with each one."""
        with self._lock:
            if self._over or self._into is None:
                raise BrokenPipeError("no caller waits for this object")
            if offset + len(chunk) > len(self._into):
                raise BufferError("more bytes than the object has")
            self._into[offset : offset + len(chunk)] = chunk
            self._got += len(chunk)

    def let_go(self) -> bool:
        """Release the memory, which is not written from now on; return True if all of it was."""
        with self._lock:
            self._over = True
            whole = self._into is not None and self._got == len(self._into)
            self._into = None
            return whole


class CrtBodies:
    """Moves objects with awscrt.

    Args:
        endpoint: of the bucket.
        keys: for the signatures; ``None`` for those of the default chain.
        parts: how objects are split.
        connections: at once, at most.
        patience: seconds to wait for a connection.
        trust: the certificates to accept.

    Raises:
        ConfigError: the authorities cannot be read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: Credentials | None,
        parts: Parts,
        *,
        connections: int,
        patience: float,
        trust: Trust,
    ) -> None:
        self._endpoint = endpoint
        self._parts = parts
        self._lock = Lock()
        self._running: set[S3Request] = set()
        self._client: S3Client | None = _client(
            endpoint, keys, parts, connections=connections, patience=patience, trust=trust
        )

    def get(self, name: str, room: Allocate, deadline: Deadline) -> ReadOutcome:
        from awscrt.s3 import S3RequestType

        for _ in range(_TRIES):
            target = ReceivedBody(room)
            request = self._request("GET", name)
            try:
                self._run(S3RequestType.GET_OBJECT, request, deadline, target=target)
            except Changed:
                continue
            except Empty:
                return Miss(Reason.REFUSED) if room(0) is None else Hit(0)
            except StoreError:
                if target.refused:
                    return Miss(Reason.REFUSED)
                raise
            finally:
                whole = target.let_go()
            if not whole or target.size is None:
                raise StoreUnreachable("not all of the object came")
            return Hit(target.size)
        raise StoreUnreachable("the object was replaced whenever it was read")

    def put(self, name: str, frame: memoryview, deadline: Deadline) -> None:
        from awscrt.s3 import S3RequestType

        source = Source(frame)
        request = self._request("PUT", name, source, len(frame))
        try:
            self._run(S3RequestType.PUT_OBJECT, request, deadline)
        except Absent as error:
            raise StoreError("the upload is gone") from error
        finally:
            source.let_go()

    def close(self) -> None:
        with self._lock:
            self._client = None
            running = list(self._running)
        for request in running:
            request.cancel()

    def _request(
        self, method: str, name: str, body: Source | None = None, size: int = 0
    ) -> HttpRequest:
        from awscrt.http import HttpHeaders, HttpRequest

        headers = HttpHeaders([("host", self._endpoint.authority)])
        if body is not None:
            headers.add("content-length", str(size))
        return HttpRequest(method, self._endpoint.path(name), headers, body)

    def _run(
        self,
        kind: S3RequestType,
        request: HttpRequest,
        deadline: Deadline,
        target: ReceivedBody | None = None,
    ) -> None:
        """Make a request, and wait until it ends or the deadline passes."""
        if deadline.expired:
            raise OutOfTime
        on_headers, on_body = _callbacks(target)
        with self._lock:
            if self._client is None:
                raise StoreError("the store is closed")
            running = self._client.make_request(
                type=kind, request=request, on_headers=on_headers, on_body=on_body
            )
            self._running.add(running)
        ended: Future[None] = running.finished_future
        try:
            # Not result(), which would raise it: awscrt keeps errors for ever, and with them
            # frames.
            error = ended.exception(deadline.remaining())
        except TimeoutError as late:
            raise OutOfTime from late
        finally:
            with self._lock:
                self._running.discard(running)
            if not ended.done():
                running.cancel()
        if error is not None:
            raise self._meant(error.with_traceback(None)) from error

    def _meant(self, error: BaseException) -> Exception:
        """The error for an exception of awscrt: always a new object, which awscrt does not keep."""
        from awscrt.exceptions import AwsCrtError
        from awscrt.s3 import S3ResponseError

        if isinstance(error, StoreError):
            return type(error)(*error.args)
        if isinstance(error, S3ResponseError):
            if error.status_code == 416:
                return Empty()
            headers = {name.lower(): value for name, value in error.headers or ()}
            return refusal(Reply(error.status_code, headers, error.body or b""))
        if isinstance(error, AwsCrtError):
            if error.name == "AWS_ERROR_S3_OBJECT_MODIFIED":
                return Changed()
            if error.name == "AWS_ERROR_S3_CANCELED" and self._client is None:
                return StoreError("the store is closed")
            if error.name == "AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED":
                return refusal(Reply(403, {}, b"<Error><Code>RequestTimeTooSkewed</Code></Error>"))
            if error.name.startswith("AWS_AUTH_"):
                return StoreError(f"no keys: {error.name}")
            return StoreUnreachable(f"{self._endpoint.authority}: {error.name}: {error.message}")
        return StoreUnreachable(f"{type(error).__name__}: {error}")


def _callbacks(
    target: ReceivedBody | None,
) -> tuple[Callable[..., None] | None, Callable[..., None] | None]:
    """The callbacks for awscrt, which passes keyword arguments and may add some."""
    if target is None:
        return None, None

    def on_headers(status_code: int, headers: Sequence[tuple[str, str]], **_more: object) -> None:
        target.on_headers(status_code, headers)

    def on_body(chunk: bytes, offset: int, **_more: object) -> None:
        target.on_body(chunk, offset)

    return on_headers, on_body


def _client(
    endpoint: Endpoint,
    keys: Credentials | None,
    parts: Parts,
    *,
    connections: int,
    patience: float,
    trust: Trust,
) -> S3Client:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.exceptions import AwsCrtError
    from awscrt.io import (
        ClientBootstrap,
        ClientTlsContext,
        DefaultHostResolver,
        EventLoopGroup,
        TlsContextOptions,
    )
    from awscrt.s3 import (
        S3Client,
        S3RequestTlsMode,
        S3RetryConfig,
        S3RetryMode,
        create_default_s3_signing_config,
    )

    loops = EventLoopGroup()
    bootstrap = ClientBootstrap(loops, DefaultHostResolver(loops))
    if keys is None:
        provider = AwsCredentialsProvider.new_default_chain(bootstrap)
    else:
        provider = AwsCredentialsProvider.new_static(
            keys.access_key, keys.secret_key, keys.token or None
        )
    tls = None
    if endpoint.tls:
        options = TlsContextOptions()
        options.verify_peer = trust.verify
        try:
            if trust.authorities:
                options.override_default_trust_store(Path(trust.authorities).read_bytes())
            tls = ClientTlsContext(options).new_connection_options()
        except (OSError, AwsCrtError) as error:
            raise ConfigError(f"tls_ca: {error}") from error
        tls.set_server_name(endpoint.host)
    return S3Client(
        bootstrap=bootstrap,
        region=endpoint.region,
        tls_mode=S3RequestTlsMode.ENABLED if endpoint.tls else S3RequestTlsMode.DISABLED,
        signing_config=create_default_s3_signing_config(
            region=endpoint.region, credential_provider=provider
        ),
        tls_connection_options=tls,
        part_size=parts.size,
        multipart_upload_threshold=parts.above + 1,
        memory_limit=max(_LEAST_MEMORY, 8 * parts.size),
        max_active_connections_override=connections,
        # The core decides about retries.
        retry_config=S3RetryConfig(retry_mode=S3RetryMode.NONE),
        connect_timeout_ms=max(1, round(patience * 1000)),
    )
