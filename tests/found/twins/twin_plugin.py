"""A plugin that two distributions offer under one name."""
