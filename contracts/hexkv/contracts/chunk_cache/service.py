"""The contract of services of chunks, which requests are written over: near tiers, or a node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hexkv.contracts.chunk_cache._base import LAYOUT, content, now, put, soon, specs
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import ChunkService, ChunkSpec, HoldTerms, Lease, Reason, ServiceHold

GROUPS = [range(layer, layer + 1) for layer in range(LAYOUT.layers)]
"""Each layer by itself."""


def payloads(leases: Sequence[Lease | None]) -> list[bytes | None]:
    """The bytes of each lease, ``None`` where there is none."""
    return [None if lease is None else bytes(lease.payload) for lease in leases]


def contents(chunks: Sequence[ChunkSpec]) -> list[bytes | None]:
    """What :func:`payloads` gives for a hold of *chunks* that all arrived."""
    return [content(chunk) for chunk in chunks]


class ChunkServiceContract(Whole):
    """Subclass this and give it the fixture ``service``: an empty one, as for a keyed cache.

    What a service is as a keyed cache, :class:`~hexkv.contracts.chunk_cache.ChunkCacheContract`
    checks.
    """

    @pytest.fixture
    def service(self) -> ChunkService:
        """An empty service."""
        raise NotImplementedError("give the subclass a `service` fixture")

    @promise(
        "service.1",
        "holds the same chunks for a request that passes over them, wherever they were found",
        level="L1",
        clause="HoldTerms.passing",
        why="a prompt would be loaded with KV of other tokens",
    )
    def test_a_passing_hold_brings_the_first_chunks(self, service: ChunkService) -> None:
        """With the tiers of a match or without; up to the first that is missing."""
        some = specs(5)
        put(service, [*some[:3], some[4]])
        found = service.match([chunk.key for chunk in some[:3]], soon())
        tiers = [tier for tier in found if tier is not None]
        assert len(tiers) == 3
        for terms in (HoldTerms(found=tiers, passing=True), HoldTerms(passing=True)):
            with service.hold(some[:3], "request", soon(), terms) as hold:
                assert hold.wait(soon(), 3)
                assert payloads(hold.leases) == contents(some[:3])
                assert hold.begun == 3
                assert list(hold.origins) == tiers
                hold.used(soon())
        with service.hold(some, "request", soon(), HoldTerms(passing=True)) as hold:
            assert hold.wait(soon())
            assert payloads(hold.leases)[:4] == [*contents(some[:3]), None]
            assert hold.reasons[3] is not None
        assert "request" not in service.ledger()

    @promise(
        "service.2",
        "keeps chunks that are held ahead until they are taken, or released",
        level="L1",
        clause="ServiceHold.keep",
        why="a prefetched prompt would be read again, or its memory lost",
    )
    def test_what_is_held_ahead_can_be_kept(self, service: ChunkService) -> None:
        """A chunk that is leased in place may be left out, with the reason ``PRESENT``."""
        some = specs(3)
        put(service, some)
        terms = HoldTerms(ahead=True, most=1 << 30, seconds=60.0)
        hold = service.hold(some, "ahead", soon(), terms)
        assert hold.known(soon())
        assert hold.keep(soon())
        assert hold.wait(soon())
        for chunk, found, why in zip(some, payloads(hold.leases), hold.reasons, strict=True):
            assert found == content(chunk) or why is Reason.PRESENT
        hold.release()
        early = service.hold(some, "ahead", soon(), terms)
        early.release()
        assert "ahead" not in service.ledger()

    @promise(
        "service.3",
        "brings each group of layers of the first chunks, in order",
        level="L1",
        clause="ServiceHold.bring",
        why="a model would compute a layer with KV that has not arrived",
    )
    def test_layers_come_group_by_group(self, service: ChunkService) -> None:
        """The layers of a group are in the leases once it was brought; a gap ends the hold."""
        some = specs(4)
        put(service, [*some[:2], some[3]])
        hold = service.hold(some, "layers", soon(), HoldTerms(layered=GROUPS))
        for number in range(len(GROUPS)):
            called: list[int] = []
            hold.once(number, lambda here=called: here.append(1))  # type: ignore[misc]
            assert hold.bring(number, soon()) == 2
            self._check_layers(hold, some[:2], number)
            hold.go_on(number, soon())
            assert called == [1]
        assert payloads(hold.leases[:2]) == contents(some[:2])
        assert hold.reasons[2] is not None
        hold.used(soon())
        hold.release()
        assert "layers" not in service.ledger()

    def _check_layers(self, hold: ServiceHold, some: Sequence[ChunkSpec], number: int) -> None:
        for lease, chunk in zip(hold.leases, some, strict=False):
            assert lease is not None
            start, end = LAYOUT.layer_span(number, chunk.tokens)
            assert bytes(lease.payload[start:end]) == content(chunk)[start:end]

    @promise(
        "service.4",
        "takes leases over with their content, when they are published for good",
        level="L4",
        clause="ChunkService.publish",
        why="each stored chunk would be copied once more, or its memory lost",
    )
    def test_leases_go_over(self, service: ChunkService) -> None:
        """Afterwards nothing of them is their owner's, and the chunks are there."""
        some = specs(3)
        leases = service.allocate(some, "store", soon())
        assert len(leases) == 3
        for lease, chunk in zip(leases, some, strict=True):
            lease.payload[:] = content(chunk)
        publishing = service.publish(leases, None, soon(), transfer=True, keep="store")
        assert "store" not in service.ledger()
        assert publishing.wait(soon())
        for tier in publishing.targets:
            assert publishing.wait(soon(), tier)
        assert any(all(here) for here in publishing.tiers.values())
        service.sweep("store")
        with service.hold(some, "request", soon()) as hold:
            assert hold.wait(soon())
            assert payloads(hold.leases) == contents(some)

    @promise(
        "service.5",
        "answers which chunks need not be stored",
        level="L1",
        clause="ChunkService.stored",
        why="a prompt would be copied again at each turn, or never be stored",
    )
    def test_what_is_stored_need_not_be_stored_again(self, service: ChunkService) -> None:
        """With and without a query of stores."""
        some = specs(4)
        keys = [chunk.key for chunk in some]
        assert list(service.stored(keys, None, "store", soon())) == [False] * 4
        put(service, some[1:3])
        assert service.flush(soon())
        for asks in (True, False):
            here = service.stored(keys, None, "store", soon(), asks=asks)
            assert list(here) == [False, True, True, False]

    @promise(
        "service.6",
        "reserves empty memory for the first chunks, and takes it back from an owner that is gone",
        level="L4",
        clause="ChunkService.reserve",
        why="memory that a call left behind would be lost",
    )
    def test_reserved_memory_is_empty_and_swept(self, service: ChunkService) -> None:
        """Without a wait for memory; a sweep twice takes back nothing more."""
        some = specs(2)
        assert service.fits(some[0].raw_bytes)
        assert service.pool_bytes >= some[0].raw_bytes
        hold = service.reserve(some, "gone", soon())
        assert hold.wait(soon())
        leases = [lease for lease in hold.leases if lease is not None]
        assert [lease.spec for lease in leases] == some[: len(leases)]
        assert service.ledger().get("gone", 0) == len(leases)
        service.sweep("gone")
        assert "gone" not in service.ledger()
        assert service.sweep("gone") == 0
        assert [tier is None for tier in service.match([some[0].key], now())] == [True]
