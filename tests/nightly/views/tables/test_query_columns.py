"""Queries in SQL that read a single column of a view."""

import pytest
from synthetic_runs import fill, make_published

from repdyn import query
from repdyn.views.tables.sql import VIEWS


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_a_view_can_be_selected_alone(tmp_path, view):
    """A view reads only the columns that a query names, and some of them are made from others."""
    store = fill(tmp_path / "store", make_published("lab/a", steps=(0, 8)))
    for name in query(store, f"select * from {view}").columns:
        assert list(query(store, f'select "{name}" from {view} limit 1').columns) == [name]
