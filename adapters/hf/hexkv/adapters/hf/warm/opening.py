"""Opens models and documents for commands, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from hexkv.adapters.hf.warm.documents import Reader
from hexkv.ports import InvalidRequest


@contextmanager
def called_well(stopped: str) -> Iterator[None]:
    """Print an invalid request in one line, with exit code 2; an interrupt prints *stopped*."""
    try:
        yield
    except InvalidRequest as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo(f"stopped: {stopped}", err=True)
        raise typer.Exit(1) from None


def open_reader(model: str, flag: str = "--model") -> Reader:
    """Return the reader of documents for a model; *flag* is the option that names the model.

    Raises:
        InvalidRequest: there is no such model.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    vocabulary = (
        _loaded(f"{flag} {model}", lambda: AutoConfig.from_pretrained(model))
        .get_text_config()
        .vocab_size
    )
    tokenizer: PreTrainedTokenizerBase | None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError, ImportError):
        tokenizer = None  # then documents are given as token ids
    return Reader(tokenizer, int(vocabulary))


def open_model(
    model: str, dtype: str, device: str, flag: str = "--model"
) -> tuple[Reader, PreTrainedModel]:
    """Return the reader of documents, and the model.

    Raises:
        InvalidRequest: there is no such model, dtype or device.
    """
    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise InvalidRequest(f"--dtype: {dtype!r} is not auto, float32, bfloat16 or float16")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        why = next(iter(str(error).splitlines()), "")
        raise InvalidRequest(f"--device: {device!r}: {why}") from error
    reader = open_reader(model, flag)
    network: PreTrainedModel = _loaded(
        f"{flag} {model}",
        lambda: AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype if dtype == "auto" else getattr(torch, dtype)
        ),
    )
    network.train(False)
    return reader, network.to(place)  # type: ignore[arg-type]


def _loaded(asked: str, call: Callable[[], Any]) -> Any:
    """Load a part of a model by transformers.

    Raises:
        InvalidRequest: it cannot.
    """
    try:
        return call()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        why = next(iter(str(error).splitlines()), "")
        raise InvalidRequest(f"{asked}: {why}") from error


@contextmanager
def bar(doing: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar for people on the standard error stream."""
    columns = (
        TextColumn(doing),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        task = bars.add_task("", total=total)
        yield lambda count: bars.advance(task, count)
