"""What operators look at: metrics, logs, charts, documents, routers, wheels."""
