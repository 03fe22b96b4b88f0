"""Signatures, against those that AWS publishes and those that botocore makes."""

from datetime import UTC, datetime
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.s3._signing import (
    Credentials,
    Scope,
    Signer,
    query_of,
    signature,
    signing_key,
)

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SCOPE = Scope("20130524", "us-east-1")
WHEN = "20130524T000000Z"
HOST = "examplebucket.s3.amazonaws.com"
"""All of these are of the examples in Amazon's documentation of Signature Version 4 for S3."""


def signed(method, path, query="", payload=EMPTY, **more):
    headers = {"host": HOST, "x-amz-content-sha256": payload, "x-amz-date": WHEN}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    ordered = dict(sorted(headers.items()))
    key = signing_key(SECRET, SCOPE)
    return signature(key, SCOPE, WHEN, method, path, query, ordered, payload)


def test_a_get_of_a_range_is_signed_as_published():
    assert signed("GET", "/test.txt", range="bytes=0-9") == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_put_is_signed_as_published():
    digest = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
    date, kind = "Fri, 24 May 2013 00:00:00 GMT", "REDUCED_REDUNDANCY"
    found = signed("PUT", "/test%24file.text", "", digest, date=date, x_amz_storage_class=kind)
    assert found == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"


def test_questions_about_a_bucket_are_signed_as_published():
    assert signed("GET", "/", query_of({"lifecycle": ""})) == (
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )
    assert signed("GET", "/", query_of({"prefix": "J", "max-keys": "2"})) == (
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST"]),
    name=words,
    query=st.dictionaries(words.filter(bool), words, max_size=4),
    token=st.sampled_from(["", "a-session/token=="]),
    now=st.integers(1_000_000_000, 2_000_000_000),
)
def test_whatever_is_asked_is_signed_as_botocore_does(method, name, query, token, now):
    path = "/bucket/" + quote(name, safe="/-_.~")
    asked = query_of(query)
    keys = Credentials("AKID", SECRET, token)
    ours = Signer("eu-west-1", "cache:9000").headers(keys, now, method, path, asked)
    url = f"http://cache:9000{path}" + (f"?{asked}" if asked else "")
    theirs = AWSRequest(method, url, headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    theirs.context["payload_signing_enabled"] = False
    theirs.context["timestamp"] = ours["x-amz-date"]
    if token:
        theirs.headers["X-Amz-Security-Token"] = token
    auth = S3SigV4Auth(BotoCredentials("AKID", SECRET, token or None), "s3", "eu-west-1")
    canonical = auth.canonical_request(_dated(theirs, ours))
    text = auth.string_to_sign(theirs, canonical)
    assert ours["authorization"].endswith(f"Signature={auth.signature(text, theirs)}")


def _dated(request, ours):
    del request.headers["x-amz-content-sha256"]
    for name in ("x-amz-content-sha256", "x-amz-date"):
        request.headers[name] = ours[name]
    return request


def test_the_key_of_yesterday_signs_nothing_today():
    signer, keys = Signer("us-east-1", HOST), Credentials("AKID", SECRET)
    midnight = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    before = signer.headers(keys, midnight - 1, "GET", "/", "")
    after = signer.headers(keys, midnight + 1, "GET", "/", "")
    assert "/20260101/" in before["authorization"]
    assert after == Signer("us-east-1", HOST).headers(keys, midnight + 1, "GET", "/", "")


def test_keys_are_not_printed():
    assert SECRET not in repr(Credentials("AKID", SECRET))
    assert "AKID" not in str(Credentials("AKID", SECRET))
