from reproducing import command  # noqa: F401
