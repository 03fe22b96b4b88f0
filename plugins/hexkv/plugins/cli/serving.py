"""Options of commands that serve others over TCP."""

from __future__ import annotations

from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen at.")]
SecretFile = Annotated[
    str, typer.Option(help="File with what clients must know. Only its owner may read it.")
]
Certificate = Annotated[
    str, typer.Option(help="Encrypt: file with the server's certificate and key.")
]
ClientCa = Annotated[str, typer.Option(help="Ask clients for a certificate of these authorities.")]
Connections = Annotated[int, typer.Option(min=1, help="Connections at a time.")]


def check_tls(certificate: str, client_ca: str) -> None:
    """End the command if it is to ask for certificates, and has none itself."""
    if client_ca and not certificate:
        raise typer.BadParameter("--tls-client-ca needs --tls-certificate")
