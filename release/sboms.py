"""Puts into each wheel a list of what it is made of and what it needs: PEP 770, CycloneDX 1.6.

    python release/sboms.py dist/*.whl

The list is `NAME.dist-info/sboms/NAME.cdx.json`, made of the wheel itself: its metadata, and the
weights in it. The same wheel gives the same bytes, and one that has its list is left as it is.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Json = dict[str, object]

_MODEL = ".safetensors"
_LARGEST = 1 << 30
"""Bytes of a wheel, unpacked, that this reads: ours have some megabytes."""


def main(paths: list[str]) -> None:
    """Add its list to each wheel."""
    for path in map(Path, paths):
        add(path)


def add(path: Path) -> None:
    """Put the list into the wheel at *path*, unless it has one.

    Raises:
        ValueError: it is no wheel, or a larger one than ours are.
    """
    with zipfile.ZipFile(path) as wheel:
        infos = wheel.infolist()
        if sum(info.file_size for info in infos) > _LARGEST:
            raise ValueError(f"{path} is too large")
        files = [(info, wheel.read(info)) for info in infos]
    content = {info.filename: data for info, data in files}
    records = [name for name in content if name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise ValueError(f"{path} is no wheel")
    home = records[0].removesuffix("/RECORD")
    if any(name.startswith(f"{home}/sboms/") for name in content):
        return
    listed = json.dumps(bill(home, content), indent=2).encode() + b"\n"
    name = f"{home}/sboms/{home.partition('-')[0]}.cdx.json"
    record = _recorded(content[records[0]], name, listed)
    # Beside it first: who reads the wheel meanwhile sees all of it, before or after.
    beside = path.with_suffix(".part")
    with zipfile.ZipFile(beside, "w") as wheel:
        for info, data in files:
            if info.filename == records[0]:
                added = zipfile.ZipInfo(name, info.date_time)
                added.compress_type, added.external_attr = info.compress_type, info.external_attr
                wheel.writestr(added, listed)
            wheel.writestr(info, record if info.filename == records[0] else data)
    beside.replace(path)


def bill(home: str, content: dict[str, bytes]) -> Json:
    """What a wheel of these files is made of, and needs. *home* is its ``.dist-info``."""
    about = HeaderParser().parsestr(content[f"{home}/METADATA"].decode())
    name = canonicalize_name(_of(about, "Name"))
    own = f"pkg:pypi/{name}@{_of(about, 'Version')}"
    number = uuid5(NAMESPACE_URL, own + _digest(content[f"{home}/RECORD"]))
    needs = [_need(*found) for found in _requirements(about)]
    models = [_model(file, data) for file, data in content.items() if file.endswith(_MODEL)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": _of(about, "Version"),
                "description": _of(about, "Summary"),
                "licenses": [{"license": {"id": _of(about, "License-Expression")}}],
                "purl": own,
            },
        },
        "components": [*needs, *models],
        "dependencies": [
            {"ref": own, "dependsOn": [need["bom-ref"] for need in needs]},
            *({"ref": need["bom-ref"]} for need in needs),
        ],
    }


def _requirements(about: Message) -> Iterator[tuple[str, list[Requirement]]]:
    """What the wheel requires, by name, each with all places that ask for it."""
    found: dict[str, list[Requirement]] = {}
    for text in about.get_all("Requires-Dist", []):
        need = Requirement(text)
        found.setdefault(canonicalize_name(need.name), []).append(need)
    return iter(sorted(found.items()))


def _need(name: str, needs: list[Requirement]) -> Json:
    """A distribution that comes beside the wheel, not in it: so it has a range, no version."""
    always = any("extra" not in str(need.marker or "") for need in needs)
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "purl": f"pkg:pypi/{name}",
        "scope": "required" if always else "optional",
        "properties": [{"name": "python:requires-dist", "value": str(need)} for need in needs],
    }


def _model(file: str, data: bytes) -> Json:
    """Weights that the wheel brings."""
    return {
        "type": "machine-learning-model",
        "bom-ref": file,
        "name": file,
        "hashes": [{"alg": "SHA-256", "content": _digest(data)}],
    }


def _recorded(record: bytes, name: str, data: bytes) -> bytes:
    """A ``RECORD`` with one more file, before its own line."""
    rows = list(csv.reader(io.StringIO(record.decode())))
    digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows.insert(-1, [name, f"sha256={digest}", str(len(data))])
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue().encode()


def _of(about: Message, field: str) -> str:
    if (value := about[field]) is None:
        raise ValueError(f"a wheel without {field}")
    return str(value)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
