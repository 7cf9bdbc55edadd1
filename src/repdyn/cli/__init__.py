"""Command lines: ``repdyn`` and its subcommands, train.py and analyze_checkpoints.py."""
