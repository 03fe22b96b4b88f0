"""Reports as one page: drawings as SVG, tables with the same numbers, no script, no network."""
