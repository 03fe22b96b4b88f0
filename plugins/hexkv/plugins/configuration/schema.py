"""All settings: the one schema, its types and its defaults.

Strict: an unknown key is an error, and no value is converted to another type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from hexkv.plugins.configuration.section import Own, Seconds, Section, Size
from hexkv.plugins.configuration.sizes import parse_size as parse_size
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import SettingError

LONGEST_CHUNK = 65_536
"""Tokens."""

IN_MEMORY = frozenset({"memory", "heap"})
"""Stores whose content no other process, and no later one, can see."""


class Model(Section):
    """Identity of the model's KV that its host cannot know, or does not.

    The host decides a field that is left empty. Name, lora, salt and extra must agree where both
    give them; a revision is added to the host's knowledge of the weights.
    """

    name: str = ""

    revision: str = ""
    """A label beside the digest of the weights: equal weights of two revisions share nothing."""

    weights: str = ""
    """In place of that digest: the operator vouches that equal texts mean equal weights."""

    measured: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """The model that serdes were measured for, by `hexkv quality`; another one is refused."""

    lora: str = ""
    salt: SecretStr = SecretStr("")
    extra: dict[str, str] = Field(default_factory=dict)


class Chunk(Section):
    """How a prompt is cut."""

    size: int = Field(default=256, ge=1, le=LONGEST_CHUNK)
    """Tokens of a chunk."""

    tail: int = Field(default=0, ge=0)
    """Tokens between the places where the last chunk of a prompt may end, if it is shorter than
    the others: its host's blocks. 0: the last chunk is not shorter."""

    longest_prompt: int = Field(default=2**24, ge=1, lt=2**32)
    """Tokens; a longer prompt is refused."""

    seeded: bool = True
    """True if the namespace's digest seeds the chain of hashes. False names chunks by tokens
    alone within a namespace, for engines that hash their pages themselves (SGLang)."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.tail and self.size % self.tail:
            raise SettingError("tail", f"does not divide size, {self.size} tokens")
        if self.tail and not self.seeded:
            # Without the seed, a first chunk of any length could be made to look like a later one.
            raise SettingError("tail", "needs seeded: true")
        return self


class SegmentSettings(Section):
    """How segments are found, whose KV is used in any place of a prompt (blending)."""

    separator: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=[], max_length=64)
    """Token ids that stand between segments; none: a prompt is not cut."""

    minimum: int = Field(default=32, ge=1)
    """Tokens of the shortest chunk of a segment that is kept."""

    index: Annotated[int, BeforeValidator(parse_size), Field(ge=0, lt=2**63)] = 16 * 2**20
    """Memory to find segments at any offset, for each namespace; 0: only between separators."""

    record: FilePath = ""
    """The file that `hexkv blend calibrate` made for the model; none: no prompt is blended."""

    check_every: int = Field(default=1_000, ge=1)
    """One blended request in this many is computed in full as well, and compared."""


class Pool(Section):
    """The memory that chunks pass through."""

    provider: str = "mmap"
    bytes: Size = 2**30
    settings: Own = Field(default_factory=dict, repr=False)

    poison: bool = False
    """Debug mode: overwrite each block as it is freed."""


class Calls(Section):
    """How long each call of the engine may take, in seconds."""

    lookup: Seconds = 1.0
    retrieve: Seconds = 10.0
    store: Seconds = 30.0
    close: Seconds = 30.0

    pin: Seconds = 600.0
    """After which a pin that was not ended is treated as one of a vanished owner."""


class Prefetch(Section):
    """Chunks that lookups may load ahead of a request."""

    share: float = Field(default=0.25, ge=0.0, le=0.5, allow_inf_nan=False)
    """Part of the pool that all prefetches together may hold; 0 turns them off."""

    seconds: Seconds = 60.0
    """After which a prefetch that no request has used is released."""


class BreakerSettings(Section):
    """When a failing tier is switched off."""

    failures: int = Field(default=5, ge=1, le=1000)
    """Failures in a row that switch it off. A call that times out does so alone."""

    pause: Seconds = 1.0
    """Before it is tried again; doubled after every failure."""

    longest_pause: Seconds = 10.0

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.pause > self.longest_pause:
            raise SettingError("pause", f"is longer than longest_pause, {self.longest_pause:g} s")
        return self


class TierSettings(Section):
    """One tier."""

    store: str
    """The store adapter that keeps the chunks."""

    name: str = Field(default_factory=lambda data: data.get("store", ""), min_length=1)
    """The name of the tier in reports and pins; the store's name unless two tiers share it."""

    budget: Size | None = None
    """The most bytes it may hold. ``null``: as much as the store has room for, or the pool."""

    policy: str = "lru"
    """Chooses the chunks to evict once the budget is used up."""

    promote: bool = True
    """Whether chunks found on lower tiers are copied here."""

    write: Literal["all", "evicted", "none"] = "all"
    """The chunks stored here: every new one, those that the tier before evicts, or none."""

    min_reuse: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    """The chance of a further request below which an evicted chunk is not written here."""

    read: bool = True
    """Whether chunks are looked up here."""

    tails: bool | None = None
    """Whether chunks shorter than ``chunk.size`` are kept here. ``null``: if it is in memory."""

    serde: str | Annotated[tuple[str, ...], Field(min_length=1)] = "raw"
    """The serdes that encode new chunks for this tier. A frame names the serde that made it.

    Of several, the most faithful first, each chunk gets the one that is read soonest, as measured.
    """

    retries: int = Field(default=1, ge=0, le=10)
    """How often a failed call is made again, within its deadline."""

    workers: int = Field(default=4, ge=1, le=64)
    """Threads for reading, and as many for writing."""

    queue: Size = 2**30
    """Bytes that may wait to be read, and as many to be written; beyond, stores are dropped."""

    breaker: BreakerSettings = BreakerSettings()

    settings: Own = Field(default_factory=dict, repr=False)
    """The adapter's own."""

    @model_validator(mode="after")
    def _of_evicted(self) -> Self:
        if self.min_reuse and self.write != "evicted":
            raise SettingError("min_reuse", "needs write: evicted")
        return self

    @property
    def serdes(self) -> tuple[str, ...]:
        """The serdes to choose from."""
        return (self.serde,) if isinstance(self.serde, str) else self.serde


class TenantSettings(Section):
    """A user whose chunks are kept apart."""

    name: str = Field(min_length=1, max_length=128)

    salt: SecretStr = Field(min_length=1)
    """The secret in the tenant's namespaces."""

    quotas: dict[str, Size] = Field(default_factory=dict)
    """Bytes of each tier that are the tenant's alone, by the tier's name."""


class DirectorySettings(Section):
    """The directory to which this process reports its chunks, for its peers."""

    adapter: str = ""
    """The directory adapter; empty: nothing is reported."""

    name: str = Field(default="", max_length=255)
    """Of this process in the directory; no other process may have it. Empty: host and process."""

    address: str = Field(default="", max_length=1024)
    """The address at which peers may read its chunks; empty: that of `peers`, if it serves them."""

    tiers: tuple[str, ...] | None = None
    """The tiers that count. ``null``: all that can be listed and that no other process fills."""

    queue: Size = 16 * 2**20
    """Bytes of changes that may wait; beyond, everything is reported anew."""

    settings: Own = Field(default_factory=dict, repr=False)
    """The adapter's own."""


class Serving(Section):
    """Limits of lending to peers."""

    bytes: Size | None = None
    """Bytes lent to peers at a time, and as many on their way from them; ``null``: a quarter of the
    pool. Requests beyond it wait."""

    rate: Size | None = None
    """Bytes per second that may leave to peers; ``null``: any number."""

    copies: int | None = Field(default=2, ge=1)
    """Peers that are sent a chunk at a time; others wait, and read it from these. ``null``: any
    number."""

    settle: Seconds = 2.0
    """Time for which they count after they received it: to keep it, and to report it."""

    accept: bool | None = None
    """Whether chunks that peers offer are kept; ``null``: if peers present a secret or a
    certificate, or are known by a Unix socket. Otherwise every process of this user could."""


class PeersSettings(Section):
    """How chunks are read from peers, and served to them."""

    channel: str = ""
    """The channel adapter; empty: there are no peers."""

    serve: Serving = Serving()

    settings: Own = Field(default_factory=dict, repr=False)
    """The adapter's own."""


class LogSettings(Section):
    """The lines of the log."""

    level: Literal["debug", "info", "warning", "error"] | None = None
    """Lines of less weight are left out. ``null``: as the program has it; `info` in servers of
    ours, `warning` in other commands."""

    format: Literal["text", "json"] | None = None
    """The form of lines on the standard error stream. ``null``: lines go where the program's own
    do, in its form; in commands they are text."""


class EngineSettings(Section):
    """Everything about one engine."""

    gigabytes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The memory of the pool in 10^9 bytes, in place of ``pool.bytes``; ranks divide it."""

    disk: FilePath = ""
    """A directory for a tier on disk below memory, in place of ``tiers``; it takes up to half of
    the file system."""

    model: Model = Model()
    chunk: Chunk = Chunk()
    segments: SegmentSettings = SegmentSettings()

    hash: Literal["sha256", "blake2b", "blake3"] = "sha256"
    """The hash that derives keys. Hosts that share a cache must agree on it."""

    checksum: str = "xxh3-128"
    """The checksum of new frames; frames name theirs, so it may change."""

    node: FilePath = ""
    """The socket of a node of this machine (``hexkv node``), which has the pool and the tiers.
    Then settings that the node decides cannot be given here."""

    pool: Pool = Pool()
    deadlines: Calls = Calls()
    prefetch: Prefetch = Prefetch()

    compute_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Tokens that the model computes per second. Chunks that would take longer are not loaded."""

    serdes: dict[str, Own] = Field(default_factory=dict, repr=False)
    """Settings of serdes, by name."""

    tiers: tuple[TierSettings, ...] = Field(default=(TierSettings(store="memory"),), min_length=1)
    """From the fastest to the slowest."""

    directory: DirectorySettings = DirectorySettings()
    peers: PeersSettings = PeersSettings()

    tenants: tuple[TenantSettings, ...] = ()
    """Users with their own part of the tiers' budgets."""

    admin: Own = Field(default_factory=dict, repr=False)
    """The address of administration: settings of the adapter ``socket``. Empty: none."""

    observe: Own = Field(default_factory=dict, repr=False)
    """The exposed metrics and state: settings of the adapter ``server``. Empty: none."""

    log: LogSettings = LogSettings()

    @property
    def shared(self) -> bool:
        """True if another process, or a later one, may find the stored chunks."""
        return bool(self.node) or any(tier.store not in IN_MEMORY for tier in self.tiers)

    @field_validator("tiers")
    @classmethod
    def _unique(cls, tiers: tuple[TierSettings, ...]) -> tuple[TierSettings, ...]:
        _refuse_equal("are both called", [tier.name for tier in tiers])
        return tiers

    @model_validator(mode="after")
    def _one_owner(self) -> Self:
        if self.node:
            for name in OF_A_NODE:
                if name in self.model_fields_set:
                    raise SettingError(name, "is the node's to say, where `node` names one")
        return self

    @field_validator("tenants")
    @classmethod
    def _apart(cls, tenants: tuple[TenantSettings, ...]) -> tuple[TenantSettings, ...]:
        _refuse_equal("are both called", [tenant.name for tenant in tenants])
        salts = [tenant.salt.get_secret_value() for tenant in tenants]
        _refuse_equal("have the same salt", salts, secret=True)
        return tenants


OF_A_NODE = (
    "pool",
    "tiers",
    "tenants",
    "serdes",
    "checksum",
    "compute_rate",
    "directory",
    "peers",
    "admin",
)
"""Sections that a node's own configuration decides."""


def _refuse_equal(what: str, values: Sequence[str], *, secret: bool = False) -> None:
    """Raise a ValueError that names the places of two equal *values*, if there are any."""
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        if first.setdefault(value, index) != index:
            shown = "" if secret else f" {value!r}"
            raise ValueError(
                f"[{first[value]}] and [{index}] {what}{shown}: give one of them another"
            )
