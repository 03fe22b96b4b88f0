"""The configuration: schema, sources, values and their problems."""
