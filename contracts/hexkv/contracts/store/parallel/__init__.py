"""The store contract under parallel calls."""
