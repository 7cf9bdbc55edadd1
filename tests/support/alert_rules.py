"""A rule by its condition."""

from repdyn.views.alerts import Rule


def rule(when, bound=None, metrics=("two_nn",), **more):
    return Rule(name=when, when=when, bound=bound, metrics=metrics, **more)
