"""The report: one self-contained page with the content of stores."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repdyn.report.write import write_report

PAGE = "report.html"
"""Default file name of the page, in the folder of the store."""

__all__ = ["PAGE", "write_report"]


def __getattr__(name: str) -> object:
    """Import slow modules on first use: ``repdyn report --help`` must not wait for them."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repdyn.report.write import write_report

    return write_report
