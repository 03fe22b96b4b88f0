"""hexkv under vLLM: a KV connector.

``--kv-transfer-config '{"kv_connector": "HexKVConnector", "kv_role": "kv_both"}'`` switches
it on. Nothing is imported here: every ``hexkv`` command imports the plugin.
"""
