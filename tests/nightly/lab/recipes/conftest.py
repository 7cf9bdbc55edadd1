from test_recipes import command  # noqa: F401
