"""Studies: analyses of finished models that are more than one number a layer; see docs/studies.md.

A study is a module or package here with ``HELP``, ``EXAMPLES``, ``add_options(parser)`` and ``run(options)``, and a
line in ``repdyn.cli.study.KINDS``.
"""
