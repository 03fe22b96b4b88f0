"""``python s3_double.py``: a small, strict S3 in memory, for tests that need a fast one.

It verifies every signature, by computing it anew from what arrived, and knows what a store
asks for: objects whole and by range, listings in pages, uploads in parts. Requests with the
word of its owner (``x-owner``) need no signature: that is the tests' back door.
"""

import argparse
import hashlib
import ssl
import sys
from datetime import UTC, datetime, timedelta
from itertools import count
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock
from types import SimpleNamespace
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from hexkv.adapters.s3._signing import UNSIGNED, Scope, query_of, signature, signing_key

ACCESS_KEY = "AKIDTESTS"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "us-east-1"
BUCKET = "tests-bucket"
SKEW = 900
"""Seconds by which a clock may be wrong."""


class Bad(Exception):
    """A request that is answered with an error: status, code."""


class Objects:
    """What is stored: whole objects, and parts of some that are still to be completed."""

    def __init__(self):
        self.lock = Lock()
        self.whole = {}
        self.uploads = {}
        self.numbers = count(1)
        self.archived = set()
        """Objects that a rule of the bucket moved to a class that is not read at once."""

        self.largest = 1 << 40

    def put(self, name, body):
        with self.lock:
            self.archived.discard(name)
            self.whole[name] = SimpleNamespace(
                body=body, tag=f'"{next(self.numbers):032x}"', time=datetime.now(UTC)
            )
            return self.whole[name]


class Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, *, rules, tls=None):
        self.objects = Objects()
        self.rules, self.tls = rules, tls
        super().__init__(address, Handler)


class Handler(StreamRequestHandler):
    disable_nagle_algorithm = True
    rbufsize = 1 << 16

    def setup(self):
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(
                self.request, server_side=True, do_handshake_on_connect=False
            )
        super().setup()

    def handle(self):
        try:
            while self.one():
                pass
        except OSError:  # ssl.SSLError is one, too
            return

    def finish(self):
        try:
            super().finish()
        except OSError:
            return

    def one(self):
        """Serve one request. Whether another may follow."""
        line = self.rfile.readline(1 << 16)
        if not line:
            return False
        method, target, version = line.decode("ascii").split()
        assert version == "HTTP/1.1"
        headers = {}
        while (field := self.rfile.readline(1 << 16)) not in (b"\r\n", b""):
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        path, _, query = target.partition("?")
        size = int(headers.get("content-length", "0"))
        self.method, self.headers, self.heard = method, headers, False
        try:
            self.check(path, query)
            body = self.body(size)
            self.answer(path, dict(parse_qsl(query, keep_blank_values=True)), body)
        except Bad as bad:
            status, code = bad.args
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
            # What was not read of a body would be taken for the next request.
            self.reply(status, text.encode(), {} if self.heard else {"Connection": "close"})
            return self.heard
        return True

    def body(self, size):
        if self.headers.get("expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray(size)
        view, done = memoryview(body), 0
        while done < size:
            got = self.rfile.readinto(view[done:])
            if not got:
                raise ConnectionResetError
            done += got
        self.heard = True
        said = self.headers.get("x-amz-content-sha256", UNSIGNED)
        if body and len(said) == 64 and said != hashlib.sha256(body).hexdigest():
            raise Bad(400, "XAmzContentSHA256Mismatch")
        return body

    def check(self, path, query):
        """Refuse what *ACCESS_KEY* did not sign."""
        rules = self.server.rules
        if rules.trusting or self.headers.get("x-owner", "") == (rules.owner or None):
            return
        kind, _, rest = self.headers.get("authorization", "").partition(" ")
        fields = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
        if kind != "AWS4-HMAC-SHA256" or not fields:
            raise Bad(403, "AccessDenied")
        access_key, day, region, service, _ = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        when = self.headers["x-amz-date"]
        here = datetime.now(UTC) + timedelta(seconds=rules.ahead)
        age = here - datetime.strptime(when, "%Y%m%dT%H%M%S%z")
        if names != sorted(names) or not {"host", "x-amz-date"} <= set(names):
            raise Bad(403, "AccessDenied")
        if abs(age.total_seconds()) > SKEW or not when.startswith(day):
            raise Bad(403, "RequestTimeTooSkewed")
        if access_key != ACCESS_KEY:
            raise Bad(403, "InvalidAccessKeyId")
        if (region, service) != (rules.region, "s3"):
            raise Bad(400, "AuthorizationHeaderMalformed")
        payload = self.headers["x-amz-content-sha256"]
        if payload not in (UNSIGNED, hashlib.sha256(b"").hexdigest()) and len(payload) != 64:
            raise Bad(400, "XAmzContentSHA256Mismatch")
        scope = Scope(day, region)
        asked = query_of(dict(parse_qsl(query, keep_blank_values=True)))
        signed = {name: self.headers[name].strip() for name in names}
        key = signing_key(rules.secret, scope)
        if fields["Signature"] != signature(
            key, scope, when, self.method, path, asked, signed, payload
        ):
            raise Bad(403, "SignatureDoesNotMatch")

    def answer(self, path, query, body):
        objects = self.server.objects
        if path.startswith("/-/") and "x-owner" in self.headers:
            if path == "/-/largest":
                objects.largest = int(body)
            if path == "/-/archived":
                objects.archived.add(bytes(body).decode())
            self.reply(200, b"%d" % len(objects.uploads))
            return
        if self.method == "PUT" and objects.largest < 0:
            raise Bad(403, "AccessDenied")
        if len(body) > max(objects.largest, 0):
            raise Bad(507, "XMinioStorageFull")
        bucket, _, name = unquote(path).removeprefix("/").partition("/")
        if bucket != BUCKET:
            raise Bad(404, "NoSuchBucket")
        match self.method, bool(name):
            case "GET", False:
                self.listing(query)
            case (("GET" | "HEAD"), True):
                self.get(name)
            case "PUT", True if "uploadId" in query:
                with objects.lock:
                    parts = objects.uploads.get(query["uploadId"])
                    if parts is None:
                        raise Bad(404, "NoSuchUpload")
                    number = int(query["partNumber"])
                    parts[number] = body
                self.reply(200, headers={"ETag": f'"part-{number}"'})
            case "PUT", True:
                self.reply(200, headers={"ETag": objects.put(name, body).tag})
            case "POST", True if "uploads" in query:
                upload = f"upload-{next(objects.numbers)}"
                objects.uploads[upload] = {}
                self.xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            case "POST", True if "uploadId" in query:
                self.complete(name, query["uploadId"], body)
            case "DELETE", True:
                with objects.lock:
                    if "uploadId" in query:
                        objects.uploads.pop(query["uploadId"], None)
                    else:
                        objects.whole.pop(name, None)
                self.reply(204)
            case _:
                raise Bad(405, "MethodNotAllowed")

    def complete(self, name, upload, body):
        objects = self.server.objects
        found = ET.fromstring(bytes(body))
        told = [
            (int(part.findtext("{*}PartNumber")), part.findtext("{*}ETag").strip('"'))
            for part in found
        ]
        with objects.lock:
            parts = objects.uploads.get(upload)
            if parts is None:
                raise Bad(404, "NoSuchUpload")
            if told != [(number, f"part-{number}") for number in sorted(parts)]:
                raise Bad(400, "InvalidPart")
            pieces = [parts[number] for number in sorted(parts)]
            if any(len(piece) < 5 << 20 for piece in pieces[:-1]):
                raise Bad(400, "EntityTooSmall")
            del objects.uploads[upload]
        tag = objects.put(name, b"".join(pieces)).tag
        self.xml("CompleteMultipartUploadResult", f"<ETag>{escape(tag)}</ETag>")

    def get(self, name):
        found = self.server.objects.whole.get(name)
        if found is None:
            raise Bad(404, "NoSuchKey")
        if self.headers.get("if-match", found.tag) != found.tag:
            raise Bad(412, "PreconditionFailed")
        if name in self.server.objects.archived and self.method == "GET":
            raise Bad(403, "InvalidObjectState")
        size = len(found.body)
        headers = {"ETag": found.tag, "Accept-Ranges": "bytes"}
        asked = self.headers.get("range")
        if asked is None:
            self.reply(200, memoryview(found.body), headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        first, last = int(first), min(int(last or size), size - 1)
        if first >= size:
            raise Bad(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self.reply(206, memoryview(found.body)[first : last + 1], headers)

    def listing(self, query):
        if query.get("list-type") != "2":
            raise Bad(400, "InvalidArgument")
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        most = min(int(query.get("max-keys", "1000")), 1000)
        with self.server.objects.lock:
            names = sorted(n for n in self.server.objects.whole if n.startswith(prefix))
            names = [name for name in names if name > after]
            found = [(name, self.server.objects.whole[name]) for name in names[:most]]
        text = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(one.body)}</Size><LastModified>"
            f"{one.time:%Y-%m-%dT%H:%M:%S}.000Z</LastModified></Contents>"
            for name, one in found
        )
        if len(names) > most:
            text += f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>"
        self.xml("ListBucketResult", text)

    def xml(self, tag, text):
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        whole = f'<?xml version="1.0"?>\n<{tag} xmlns="{space}">{text}</{tag}>'.encode()
        # As the real ones do: in pieces, without saying how many bytes there are.
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"".join(
                b"%x\r\n%b\r\n" % (len(piece), piece)
                for piece in (whole[i : i + 1000] for i in range(0, len(whole), 1000))
            )
            + b"0\r\n\r\n"
        )

    def reply(self, status, body=b"", headers=None):
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"HTTP/1.1 {status} Said\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode()
        self.wfile.write(head)
        if self.method != "HEAD" and len(body):
            self.wfile.write(body)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--owner", default="")
    parser.add_argument("--certificate", default="", help="and its key: speak TLS")
    parser.add_argument("--trusting", action="store_true", help="verify no signature")
    parser.add_argument("--secret", default=SECRET_KEY, help="what signatures are made with")
    parser.add_argument("--region", default=REGION, help="what they are made for")
    parser.add_argument("--ahead", type=int, default=0, help="seconds that the clock is wrong by")
    asked = parser.parse_args()
    tls = None
    if asked.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(asked.certificate)
    address = ("127.0.0.1", asked.port)
    with Server(address, rules=asked, tls=tls) as server:
        sys.stdout.write(f"{server.socket.getsockname()[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
