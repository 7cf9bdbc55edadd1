"""The report: one page that holds what stores hold, opens from disk in any browser, and asks no network."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repdyn.report.write import write_report

PAGE = "report.html"
"""Where the page of a store lies in it, unless another place is named."""

__all__ = ["PAGE", "write_report"]


def __getattr__(name: str) -> object:
    """Import slow modules on first use: ``repdyn report --help`` must not wait for them."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repdyn.report.write import write_report

    return write_report
