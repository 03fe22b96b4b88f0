"""Options of several verbs, and the cache that they address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hexkv.adapters.admin.api import connect
from hexkv.adapters.admin.cli.choosing import Words
from hexkv.adapters.net.security import RotatedSecret
from hexkv.adapters.net.tls import Trust
from hexkv.plugins.cli.output import PromptFile, named
from hexkv.plugins.configuration.config import load
from hexkv.ports import Administration

Keys = Annotated[
    list[str] | None, typer.Option("--key", help="A chunk, in hexadecimal. May be repeated.")
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", help="The first digits of a namespace. May be repeated."),
]
Tenant = Annotated[str, typer.Option("--tenant", help="All namespaces of a tenant, by name.")]
Everything = Annotated[bool, typer.Option("--everything", help="All chunks.")]
Oldest = Annotated[
    str, typer.Option("--oldest", help="Of these the part that each tier values least: 50%.")
]
TierName = Annotated[str, typer.Argument(help="Name of a tier.")]


def check_files(secret_file: str, tls_ca: str) -> None:
    """End the command, by the option that names it, if a file of these cannot be used."""
    if secret_file:
        with named("--secret-file"):
            RotatedSecret(secret_file)
    if tls_ca:
        with named("--tls-ca"):
            Trust(tls_ca).context()


@dataclass(frozen=True, slots=True)
class Target:
    """The cache that the command line names."""

    address: str
    secret: str = field(repr=False)
    secret_file: str
    tls_ca: str

    @classmethod
    def of(cls, address: str, secret_file: str, tls_ca: str, config: Path | None) -> Target:
        """Return a target; missing options come from section ``admin`` of a configuration.

        Raises:
            ConfigError: it cannot be read.
        """
        said = load(config).settings.admin
        secret = "" if secret_file else str(said.get("secret") or "")
        file = secret_file or ("" if secret else str(said.get("secret_file") or ""))
        return cls(address, secret, file, tls_ca or str(said.get("tls_ca") or ""))

    def connect(self) -> Administration:
        """Return the administration at the address.

        Raises:
            ConfigError, StoreUnreachable
        """
        check_files(self.secret_file, self.tls_ca)
        return connect(
            self.address, secret=self.secret, secret_file=self.secret_file, tls_ca=self.tls_ca
        )


def target_of(context: typer.Context) -> Administration:
    """Return the administration that a verb addresses."""
    target: Target = context.obj
    return target.connect()


def words(
    tokens: PromptFile = "",
    key: Keys = None,
    namespace: Namespaces = None,
    tenant: Tenant = "",
    everything: Everything = False,
    oldest: Oldest = "",
) -> Words:
    """Return the values of the options that choose chunks."""
    return Words(tokens, key or (), namespace or (), tenant, everything, oldest)


def choosing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options that choose chunks, in place of its parameter ``chosen``.

    Args:
        names: of the options of :func:`words` to add; by default all.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        known = signature(words, eval_str=True).parameters
        options = [it for name, it in known.items() if name in names or not names]
        found: list[Parameter] = []
        for parameter in signature(verb, eval_str=True).parameters.values():
            found += options if parameter.name == "chosen" else [parameter]
        named = [it.replace(kind=Parameter.KEYWORD_ONLY) for it in found]

        @wraps(verb)
        def command(**given: Any) -> None:
            said = words(**{it.name: given.pop(it.name) for it in options})
            verb(chosen=said, **given)

        command.__signature__ = Signature(named)  # type: ignore[attr-defined]
        command.__annotations__ = {it.name: it.annotation for it in named}
        return command

    return decorate
