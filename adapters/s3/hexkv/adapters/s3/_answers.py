"""Translates replies into the outcomes and errors of the ports.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree as ET

from hexkv.ports import StoreError, StoreFull, StoreUnreachable

LONGEST_TEXT = 8 << 20
"""The most bytes of XML that are read: a page of a thousand names has a tenth of that."""

_PASSING = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",  # the server waited too long for a body; its status is 400
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
    }
)
"""Codes of transient errors, with any status."""

_FULL = frozenset(
    {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "ServiceQuotaExceeded"}
)

_ADVICE = {
    "AccessDenied": "the keys may not do this; absent objects look so without s3:ListBucket",
    "InvalidAccessKeyId": "check access_key",
    "NoSuchBucket": "check url: nothing creates a bucket",
    "PermanentRedirect": "check region and endpoint",
    "AuthorizationHeaderMalformed": "check region",
    "RequestTimeTooSkewed": "this host's clock is wrong",
    "SignatureDoesNotMatch": "check secret_key and region",
}


class Reply(NamedTuple):
    """A reply, received completely."""

    status: int
    headers: Mapping[str, str]
    text: bytes = b""


class Absent(Exception):
    """The object does not exist."""


class Changed(Exception):
    """The object was replaced since its other parts were read."""


def refusal(reply: Reply) -> StoreError | Absent | Changed:
    """The error for a reply that refuses the request."""
    code, message = _reason(reply.text)
    if reply.status == 404 and code in ("", "NoSuchKey"):
        return Absent()
    if reply.status == 412:
        return Changed()
    detail = f"the server answered {reply.status}: {code or 'no reason'} {message}".strip()
    if reply.status == 507 or code in _FULL:
        return StoreFull(detail)
    if code in _PASSING or reply.status in (408, 429) or reply.status >= 500:
        return StoreUnreachable(detail)
    advice = _ADVICE.get(code) or _advice(reply)
    return StoreError(f"{detail} ({advice})" if advice else detail)


def _advice(reply: Reply) -> str:
    if "x-amz-bucket-region" in reply.headers and reply.status in (301, 307, 400):
        return f"the bucket is in {reply.headers['x-amz-bucket-region']}"
    if reply.status in (301, 307):
        return _ADVICE["PermanentRedirect"]
    if reply.status in (401, 403):
        return "check the keys, and what they may do"
    return ""


def _reason(text: bytes) -> tuple[str, str]:
    """Code and message of an error's body; empty if it has none."""
    try:
        root = parsed(text)
    except StoreUnreachable:
        return "", ""
    return _word(root, "Code"), _word(root, "Message")[:200]


def failed_after_all(text: bytes) -> bool:
    """True if the body of a reply of 200 is an error, as is possible when completing an upload."""
    return text.lstrip().startswith(b"<?xml") and parsed(text).tag.endswith("Error")


class Listed(NamedTuple):
    """One object of a listing."""

    name: str
    size: int
    changed: float
    """Wall-clock seconds."""


class Page(NamedTuple):
    """A part of a listing."""

    objects: list[Listed]
    more: str
    """The continuation token of the next page; empty if this is the last."""


def page(text: bytes) -> Page:
    """Parse a page of ListObjectsV2.

    Raises:
        StoreUnreachable: *text* is not one.
    """
    root = parsed(text)
    space = root.tag.removesuffix("ListBucketResult")
    if space == root.tag:
        raise StoreUnreachable(f"a listing was asked for, not {root.tag[:80]!r}")
    try:
        objects = [
            Listed(
                found.findtext(f"{space}Key", ""),
                int(found.findtext(f"{space}Size", "")),
                datetime.fromisoformat(found.findtext(f"{space}LastModified", "")).timestamp(),
            )
            for found in root.iter(f"{space}Contents")
        ]
    except ValueError as error:
        raise StoreUnreachable(f"a listing that cannot be read: {error}") from error
    return Page(objects, root.findtext(f"{space}NextContinuationToken", ""))


def word(text: bytes, name: str) -> str:
    """The text of the element *name* directly below the root.

    Raises:
        StoreUnreachable: *text* is no XML, or has no such element.
    """
    found = _word(parsed(text), name)
    if not found:
        raise StoreUnreachable(f"a reply without {name}")
    return found


def parsed(text: bytes) -> ET.Element:
    """The root element of *text*.

    Raises:
        StoreUnreachable: it is no XML, or defines entities, of which S3 has none.
    """
    if b"<!DOCTYPE" in text:
        raise StoreUnreachable("a reply with a document type")
    try:
        return ET.fromstring(text)  # noqa: S314 - no document types, so no entities
    except ET.ParseError as error:
        raise StoreUnreachable(f"a reply that is no XML: {error}") from error


def _word(root: ET.Element, name: str) -> str:
    for found in root:
        if found.tag.rpartition("}")[2] == name:
            return found.text or ""
    return ""
