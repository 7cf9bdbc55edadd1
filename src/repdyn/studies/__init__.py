"""Studies: analyses of finished models that are more than one number a layer; see docs/studies.md.

A study is a package here whose module ``study`` has a function of the same name, whose signature and docstring are the
options and the help of ``repdyn study NAME``, and a line in ``repdyn.cli.main.STUDIES``.
"""
