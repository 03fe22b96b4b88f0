"""The chunks of an archive: of a namespace, a model, a tenant, or a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256

from hexkv.core.keys.hashing import hashed_salt
from hexkv.core.keys.tokens import pack
from hexkv.core.tiers.read.block_sink import spec_of
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import suggestion
from hexkv.plugins.configuration.schema import LONGEST_CHUNK
from hexkv.plugins.observing.described import algorithm_called, fields_of, hasher_of
from hexkv.ports import (
    NAMESPACE_BYTES,
    RAW,
    AdapterUnavailable,
    ChunkKey,
    ConfigError,
    FrameHeader,
    InvalidRequest,
    namespace_of,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen chunks. An empty field restricts nothing."""

    namespace: str = ""
    """The first hexadecimal digits of a namespace, as ``hexkv inspect`` shows them."""

    model: str = ""
    tenant: str = ""
    salted: str = ""
    """The digest of the tenant's salt."""

    prompt: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        *,
        namespace: str = "",
        model: str = "",
        tenant: str = "",
        prompt: Sequence[int] | None = None,
    ) -> Selection:
        """Return the selection of a command's options.

        Raises:
            InvalidRequest: one of them is invalid; the message names its option.
        """
        digits = namespace.lower()
        if not set(digits) <= set("0123456789abcdef") or len(digits) > 2 * NAMESPACE_BYTES:
            raise InvalidRequest(f"--namespace: {namespace!r} is no beginning of a namespace")
        salts = {one.name: one.salt.get_secret_value() for one in loaded.settings.tenants}
        if tenant and tenant not in salts:
            known = suggestion(tenant, list(salts), noun="configured")
            raise InvalidRequest(f"--tenant: there is no tenant {tenant!r}{known}")
        salted = hashed_salt(salts[tenant]) if tenant else ""
        return cls(digits, model, tenant, salted, prompt)

    @property
    def about(self) -> dict[str, object]:
        """Return the selection for the head of an archive: equal selections give equal values."""
        fields: dict[str, object] = {
            "namespace": self.namespace,
            "model": self.model,
            "tenant": self.salted,
        }
        if self.prompt is not None:
            fields["prompt"] = sha256(pack(self.prompt)).hexdigest()
            fields["tokens"] = len(self.prompt)
        return {name: value for name, value in fields.items() if value}

    def takes(self, prefix: bytes, identity: str) -> bool:
        """True if chunks of a namespace are wanted."""
        described = fields_of(identity)
        return (
            prefix.hex().startswith(self.namespace)
            and self.model in ("", described.get("model"))
            and self.salted in ("", described.get("salt"))
        )

    def keys(self, identity: str) -> list[ChunkKey]:
        """Return the prompt's keys in a namespace, and those that its last chunk may have.

        Raises:
            ConfigError, AdapterUnavailable: naming them takes more than the prompt.
        """
        packed = pack(self.prompt or [])
        hasher, chunker = hasher_of(identity)
        keys, (starts, ends) = hasher.name(packed), hasher.cut(packed)
        if keys and ends[-1] - starts[-1] < chunker.size:
            # The host decides where tails may end: so try each token.
            after = keys[-2] if len(keys) > 1 else None
            shorter = range(ends[-1] - 1, starts[-1], -1)
            keys += hasher.name_ends(packed, starts[-1], shorter, after)
        return keys


def prefix_of(identity: str) -> bytes:
    """Return the prefix of the keys of a namespace.

    Raises:
        ConfigError: its keys are made in a way that is not known.
        AdapterUnavailable: its hash is not installed.
    """
    named = fields_of(identity).get("algorithm", "")
    return algorithm_called(str(named)).digest(identity.encode())[:NAMESPACE_BYTES]


def unfit(header: FrameHeader, serdes: Collection[str]) -> str:
    """Return why a frame is no chunk of its identity, by its header alone; empty if it may be.

    Args:
        header: of the frame.
        serdes: names of those that are installed.
    """
    try:
        prefix = prefix_of(header.identity)
    except (ConfigError, AdapterUnavailable) as error:
        return str(error)
    if prefix != namespace_of(header.key):
        return "its key is none of the namespace that it names"
    if spec_of(header) is None or header.tokens > _most_tokens(header):
        return "its sizes are not those of its identity"
    if header.serde not in (RAW, *serdes):
        return f"its serde {header.serde!r} is not installed"
    return ""


def _most_tokens(header: FrameHeader) -> int:
    """Return the tokens of a whole chunk of a frame's namespace."""
    try:
        return hasher_of(header.identity)[1].size
    except (ConfigError, AdapterUnavailable):  # cut in another way
        # A raw frame contains all its bytes; those of an encoded one have to be allocated.
        return header.tokens if header.serde == RAW else LONGEST_CHUNK
