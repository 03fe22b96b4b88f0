"""The worker side of the connector: moves of KV."""
