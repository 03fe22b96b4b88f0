"""Registers the adapter with hexkv and vLLM. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.adapters.vllm.configuration.early import CONNECTOR as NAME
from hexkv.adapters.vllm.configuration.early import watch
from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.plugins.spec import AdapterSpec, OpenContext, hookimpl
from hexkv.ports import ConfigError

MODULE = "hexkv.adapters.vllm.connector"


def _open(settings: ConnectorSettings, context: OpenContext) -> object:
    del settings, context
    raise ConfigError(f"vLLM builds this adapter itself: --kv-transfer-config kv_connector={NAME}")


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "device",
            "vllm",
            "vLLM's KV memory, through a KV connector",
            _open,
            ConnectorSettings,
            requires=("vllm", "torch"),
            hint="pip install hexkv-vllm into the environment of vLLM",
            contract=2,
        )
    ]


def register() -> None:
    """Register the connector with vLLM by name. Called in each of its processes, maybe twice.

    vLLM finds this by the entry-point group ``vllm.general_plugins``.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # The factory refuses a name that it knows already, and has no other way to ask.
    try:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    except ValueError as error:
        if "registered" not in str(error):
            raise
    watch(KVConnectorFactory)
