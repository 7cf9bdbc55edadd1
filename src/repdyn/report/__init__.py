"""The report: one page that holds what stores hold, opens from disk in any browser, and asks no network."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repdyn.report.write import write_report

PAGE = "report.html"
"""Where the page of a store lies in it, unless another place is named."""

__all__ = ["PAGE", "write_report"]


def __getattr__(name: str) -> object:
    """What takes long to import is imported when it is asked for: ``repdyn report --help`` must not wait for it."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repdyn.report.write import write_report

    return write_report
