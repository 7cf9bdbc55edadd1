"""Views of a training while it runs: its loggers, its alerts and its page, each a sink."""
