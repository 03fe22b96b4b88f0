"""Reports errors in a configuration while vLLM reads its own: before weights, on any device.

vLLM asks a connector's class about its configuration early only where there are CUDA graphs. On
every device it looks the class up by that configuration, in the process that the user started and
before it starts others. That look-up is wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from multiprocessing import parent_process
from types import TracebackType
from typing import Any

from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.causes import cause_report
from hexkv.ports import ConfigError, HexKVError

CONNECTOR = "HexKVConnector"
SPEC = "HexKVOffloadingSpec"

_checked: set[str] = set()
"""vLLM's names of engines whose configuration was found to be right."""


def watch(factory: Any) -> None:
    """Make vLLM's class ``KVConnectorFactory`` check each configuration. Twice is allowed."""
    find: Callable[..., object] | None = getattr(factory, "get_connector_class", None)
    if find is not None and not hasattr(find, "hexkv"):
        factory.get_connector_class = staticmethod(_checking(find))


def _checking(find: Callable[..., object]) -> Callable[..., object]:
    @wraps(find)
    def checking(transfer: Any) -> object:
        found = find(transfer)
        if parent_process() is None and transfer.engine_id not in _checked:
            try:
                _check(transfer.kv_connector, transfer.kv_connector_extra_config)
            except HexKVError as error:
                _report_last(error)
                raise
            if not _checked:
                end_with_cause()
            _checked.add(transfer.engine_id)
        return found

    checking.hexkv = True  # type: ignore[attr-defined]  # a mark: wrapped once
    return checking


def _check(connector: str | None, extra: Mapping[str, object]) -> None:
    # vLLM loads this module with its plugins, in each process and for any connector.
    from hexkv.adapters.vllm.configuration.configuration import configure_offloading, verify
    from hexkv.plugins.discovery.discovery import discover

    if connector == CONNECTOR:
        configured = verify(extra, discover()).engine
    elif extra.get("spec_name") == SPEC:
        configured = configure_offloading(extra, discover()).engine
    else:
        return
    if configured.settings.node:
        return  # the pool is the node's
    size, most = configured.settings.pool.bytes, available_bytes()
    if size > most:  # before anything is in it, weights or a pool
        where = configured.locate(("pool", "bytes"))
        raise ConfigError(f"{where}: each rank takes {size:,} bytes of the {most:,} there are")


def end_with_cause() -> None:
    """Make this process end its log with the cause that a descendant passes on, if one does."""
    before, report = sys.excepthook, cause_report("vLLM")

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        report()

    sys.excepthook = hook


def _report_last(cause: HexKVError) -> None:
    """End the log with *cause* in two lines if it is not caught: a traceback would bury them."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is cause:
            sys.stderr.write(f"vLLM does not start, for hexkv cannot be configured so:\n{cause}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = hook
