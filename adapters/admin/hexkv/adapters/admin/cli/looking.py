"""The verbs of ``hexkv admin`` that read and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import typer

from hexkv.adapters.admin.cli import showing
from hexkv.adapters.admin.cli.choosing import PromptKeys, Words
from hexkv.adapters.admin.cli.options import choosing, target_of
from hexkv.plugins.cli.output import Json, print_json, print_table, refuse
from hexkv.plugins.observing.described import model_and_layout
from hexkv.ports import Administration, NamespaceState, Reason, Why


def status(context: typer.Context, as_json: Json = False) -> None:
    """Show the state of the cache: memory, leases, pins, breakers."""
    health = target_of(context).status()
    if as_json:
        showing.as_json(health)
    else:
        showing.show_status(health)


def tiers(context: typer.Context, as_json: Json = False) -> None:
    """Show the tiers, their contents and their rules."""
    states = target_of(context).tiers()
    if as_json:
        showing.as_json(tuple(states))
    else:
        showing.show_tiers(states)


def namespaces(context: typer.Context, as_json: Json = False) -> None:
    """Show whose chunks there are: models, tenants, and how many on each tier."""
    states = target_of(context).namespaces()
    if as_json:
        showing.as_json(tuple(states))
    else:
        showing.show_namespaces(states)


@choosing("tokens", "key", "namespace")
def lookup(
    context: typer.Context,
    chosen: Words,
    as_json: Json = False,
) -> None:
    """Say where the chunks of a prompt are, or of keys. Exit code 0 if all are there."""
    admin = target_of(context)
    if chosen.keys:
        keys = chosen.listed()
        found = admin.lookup(keys)
        rows = [{"key": k.hex(), "tier": tier} for k, tier in zip(keys, found, strict=True)]
        if as_json:
            print_json(rows)
        else:
            print_table(
                ["key", "tier"], [(k.hex(), t or "") for k, t in zip(keys, found, strict=True)]
            )
        raise typer.Exit(0 if None not in found else 1)
    if not chosen.tokens:
        refuse("--tokens", "give a prompt, or --key")
    prefixes = [
        _prefix(state, prompt, admin.lookup(prompt.keys)) for state, prompt in chosen.prompts(admin)
    ]
    if as_json:
        print_json([prefix.as_json() for prefix in prefixes])
    elif not prefixes:
        typer.echo(_no_namespace(admin))
    else:
        print_table(
            ["namespace", "model", "layout", "tokens ", "chunks"],
            [
                (
                    prefix.state.prefix.hex()[:12],
                    *model_and_layout(showing.identity_of(prefix.state)),
                    f"{prefix.tokens} of {prefix.of}",
                    showing.summed(prefix.tiers),
                )
                for prefix in prefixes
            ],
        )
    raise typer.Exit(0 if any(prefix.whole for prefix in prefixes) else 1)


@choosing("tokens", "key", "namespace")
def explain(
    context: typer.Context,
    chosen: Words,
    as_json: Json = False,
) -> None:
    """Say where a prompt stops being found, in each namespace, and why, tier by tier.

    Exit code 1 if no namespace is known.
    """
    admin = target_of(context)
    if chosen.keys:
        keys = chosen.listed()
        whys = admin.explain(keys)
        if as_json:
            print_json([{"key": k.hex()} | _plain(w) for k, w in zip(keys, whys, strict=True)])
        else:
            rows = [(k.hex(), _reasons(w)) for k, w in zip(keys, whys, strict=True)]
            print_table(["key", "why"], rows)
        return
    if not chosen.tokens:
        refuse("--tokens", "give a prompt, or --key")
    found: list[dict[str, object]] = []
    for state, prompt in chosen.prompts(admin):
        whys = admin.explain(prompt.keys)
        prefix = _prefix(state, prompt, list(map(_present, whys)))
        missed = whys[len(prefix.tiers) :]
        why = missed[0] if missed else {}
        found.append(prefix.as_json() | {"why": _plain(why)})
        if not as_json:
            model, layout = model_and_layout(showing.identity_of(state))
            typer.echo(f"{state.prefix.hex()[:12]} {model} {layout}: ", nl=False)
            typer.echo(f"{prefix.tokens} of {prefix.of} tokens would be found")
            if missed:
                start = prefix.tokens
                end = prompt.ends[len(prefix.tiers)]
                short = f"; too short for a chunk of {prompt.size} tokens"
                short = short if end - start < prompt.size else ""
                typer.echo(f"  tokens {start} to {end}: {_reasons(why)}{short}")
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(_no_namespace(admin))
    if not found:
        raise typer.Exit(1)


def _no_namespace(admin: Administration) -> str:
    """Return that no namespace is known, and for each tier that may have some why."""
    unread = {tier for state in admin.namespaces() if not state.identity for tier in state.chunks}
    whys = []
    for tier in admin.tiers():
        health = tier.health
        if health.name in unread:
            why = "cannot be read"
        elif health.indexing:
            why = "is still being listed"
        elif health.chunks is None:
            why = "does not list its chunks"
        else:
            continue
        whys.append(f"tier {health.name} {why}")
        whys[-1] += f": {health.last_error}" if health.last_error else ""
    known = "no namespace is known"
    return f"{known}: {'; '.join(whys)}" if whys else known


class _Prefix(NamedTuple):
    """The cached prefix of a prompt in a namespace."""

    state: NamespaceState
    tokens: int
    of: int
    tiers: Sequence[str]
    """The tiers of its chunks, from the first on."""

    whole: bool

    def as_json(self) -> dict[str, object]:
        return {
            "namespace": self.state.prefix.hex(),
            "identity": showing.identity_of(self.state),
            "tenant": self.state.tenant,
            "tokens": self.of,
            "hit_tokens": self.tokens,
            "tiers": list(self.tiers),
        }


def _prefix(state: NamespaceState, prompt: PromptKeys, found: Sequence[str | None]) -> _Prefix:
    """Return the prefix of chunks that *found* has a tier for."""
    hit = next((i for i, tier in enumerate(found) if tier is None), len(found))
    # A prompt's partial last chunk is stored only where tails are enabled: it may be missing.
    unfull = bool(prompt.ends) and prompt.ends[-1] % prompt.size != 0
    return _Prefix(
        state,
        prompt.ends[hit - 1] if hit else 0,
        prompt.ends[-1] if prompt.ends else 0,
        [tier for tier in found[:hit] if tier is not None],
        hit >= len(found) - unfull and hit > 0,
    )


def _present(whys: Mapping[str, Why]) -> str | None:
    """Return the first tier from which a chunk would be loaded."""
    return next((tier for tier, why in whys.items() if why.reason is Reason.PRESENT), None)


def _plain(whys: Mapping[str, Why]) -> dict[str, object]:
    return {
        tier: {"reason": why.reason.value, "when": why.when, "detail": why.detail}
        for tier, why in whys.items()
    }


def _reasons(whys: Mapping[str, Why]) -> str:
    return "; ".join(
        f"{tier}: {why.reason}" + (f" ({why.detail})" if why.detail else "")
        for tier, why in whys.items()
    )


def add_looks(app: typer.Typer) -> None:
    """Add these verbs to *app*."""
    for verb in (status, tiers, namespaces, lookup, explain):
        app.command()(verb)
