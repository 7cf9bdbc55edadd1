"""SQL over stores, run by DuckDB: the views ``rows``, ``runs`` and ``profiles``.

``repdyn query "select run, max(step) from rows group by run" sweeps`` prints a table; ``store.sql(...)`` returns a data
frame.
"""

from repdyn.query.connection import VIEWS, query

__all__ = ["VIEWS", "query"]
