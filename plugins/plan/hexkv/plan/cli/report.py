"""``hexkv report``: the record of a cache, as a page, in the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hexkv.plan.cli.plan import (
    Html,
    Policies,
    Processes,
    chunks_of,
    compare,
    policy_names,
    save,
)
from hexkv.plan.cli.replaying import Job, Plan, Replayer
from hexkv.plan.recorded import requests_of
from hexkv.plan.records import read_records
from hexkv.plan.replay import unlimited
from hexkv.plan.reports.record_page import record_page
from hexkv.plan.reports.recorded import changed, changes, measured, sizes_of
from hexkv.plugins.cli.output import (
    Json,
    human_size,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
)


def report(
    records: Annotated[
        list[Path], typer.Argument(help="Files of a record, or folders (`observe.record`).")
    ],
    html: Html = None,
    sizes: Annotated[
        str, typer.Option(help="Sizes to replay, as chunks or bytes: 3k,64GiB; some by default.")
    ] = "",
    policies: Policies = "",
    policy: Annotated[str, typer.Option(help="By which changes are judged.")] = "lru",
    processes: Processes = 1,
    as_json: Json = False,
) -> None:
    """Say what a recorded cache did: hits by tier, where time went, and what more room brings."""
    record = read_records(records)
    head = record.heads[0]
    names = policy_names(policies)
    with named("--policy"):
        installed().find("policy", policy)
    found = measured(record)
    requests = requests_of(record.calls, head.chunk_tokens)
    plan = Plan(records, head.chunk_tokens, head.chunk_bytes, recorded=True)
    chunks = chunks_of(sizes, head.chunk_bytes) if sizes else sizes_of(found, requests)
    found["sizes"] = None
    if chunks:
        compared = compare(plan, requests, names, chunks, processes, quiet=as_json)
        title = ", ".join(path.name for path in records)
        found["sizes"] = compared.as_json(title, head.chunk_tokens, head.chunk_bytes)
    replayer = Replayer(plan, requests, installed())
    wanted = changes(found)
    most = unlimited(requests, chunk_tokens=head.chunk_tokens)
    there = len({key for request in requests for key in request.keys})
    replayed = [
        most if room is None or room >= there else replayer.run(Job(policy, room))
        for _, _, room in wanted
    ]
    found["policy"] = policy
    found["changes"] = changed(found, wanted, replayed)
    if html is not None:
        save(html, record_page(found), "--html")
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    typer.echo(
        f"{found['requests']:,} requests, {found['tokens']:,} tokens,"
        f" {found['hit_tokens']:,} of them hit ({found['hit_rate']:.1%})"
    )
    for what in ("lost_calls", "cut_files"):
        if found["record"][what]:
            typer.echo(f"{what.replace('_', ' ')}: {found['record'][what]:,}")
    typer.echo()
    print_table(
        ["tier", "tokens hit ", "stored ", "used ", "budget "],
        [
            (
                tier["name"],
                f"{tier['hit_tokens']:,}",
                f"{tier['stored_tokens']:,}",
                *(
                    "" if tier[n] is None else human_size(tier[n])
                    for n in ("used_bytes", "budget_bytes")
                ),
            )
            for tier in found["tiers"]
        ],
    )
    typer.echo()
    print_table(
        ["what a change would bring", "hit rate ", "tokens an hour "],
        [
            (row["what"], f"{row['hit_rate']:.4f}", f"{row['hit_tokens_per_hour']:,.0f}")
            for row in found["changes"]
        ],
    )


def _room(tier: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return tier["used_bytes"], tier["budget_bytes"]


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Report what a recorded cache did.")
    app.command()(report)
    return run_app(app, "hexkv report", arguments)
