"""The ``hexkv`` command. typer and rich are imported in here and nowhere else."""
