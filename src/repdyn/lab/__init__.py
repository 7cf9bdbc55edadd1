"""One-off analyses of models and of papers, made of what the package shows to any user.

Each study is a function that returns its tables as data frames, its figures and a summary:

    result = repdyn.lab.tokens("gpt2", text="builtin")
    result.classes                 # a pandas.DataFrame
    result.figures["rank"]         # a figure of matplotlib
    result.save("studies")         # the files that "repdyn study tokens gpt2" writes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repdyn.utils.extras import lazy_names

if TYPE_CHECKING:
    from repdyn.lab.studies.anatomy import anatomy
    from repdyn.lab.studies.convergence import convergence
    from repdyn.lab.studies.result import StudyResult
    from repdyn.lab.studies.sentences import sentences
    from repdyn.lab.studies.tokens import tokens
    from repdyn.lab.studies.topics import topics
    from repdyn.utils.arguments import ModelOptions

__all__ = [
    "ModelOptions",
    "StudyResult",
    "anatomy",
    "convergence",
    "sentences",
    "tokens",
    "topics",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ModelOptions": "repdyn.utils.arguments",
        "StudyResult": "repdyn.lab.studies.result",
        "anatomy": "repdyn.lab.studies.anatomy",
        "convergence": "repdyn.lab.studies.convergence",
        "sentences": "repdyn.lab.studies.sentences",
        "tokens": "repdyn.lab.studies.tokens",
        "topics": "repdyn.lab.studies.topics",
    },
)
