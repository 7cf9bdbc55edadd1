"""Studies: analyses of finished models that are more than one number a layer; see docs/studies.md.

A study is a module here with a function of its name, whose signature and docstring are the options
and the help of ``repdyn study NAME``, and a line in ``repdyn.cli.main.STUDIES``.
"""
