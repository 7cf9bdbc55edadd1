"""The report: one self-contained page with the content of stores."""

from typing import TYPE_CHECKING, Any

PAGE = "report.html"
"""Default file name of the page, in the folder of the store."""

__all__ = ["PAGE", "write_report"]

if TYPE_CHECKING:
    from repdyn.views.report.write import write_report
else:

    def write_report(*arguments: Any, **settings: Any) -> Any:
        """Write the page, as :func:`repdyn.views.report.write.write_report`, which is imported when
        it is called.
        """
        from repdyn.views.report.write import write_report as write  # with Matplotlib

        return write(*arguments, **settings)
