"""The effect of lossy serdes on a model: measured, and recorded in a configuration."""
