"""Which tests a command selects."""

import pytest
from lanes import extended_except

CONFTEST = "from lanes import leave_out_extended_tests as pytest_configure"
INI = """
[pytest]
testpaths = area
markers =
    extended: left out by default
"""
TESTS = """
import pytest

def test_short(): pass

@pytest.mark.extended
def test_long(): pass
"""


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        ((), 1),
        (("-q", "-p", "no:cacheprovider"), 1),
        (("area",), 2),
        (("area/test_it.py::test_long",), 1),
        (("-k", "long"), 1),
        (("-k", "short or long"), 2),
        (("-m", "extended"), 1),
        (("-m", "not slow"), 2),
        (("area", "-m", "not extended"), 1),
    ],
)
def test_extended_tests_run_where_a_path_a_keyword_or_a_marker_is_given(pytester, options, selected):
    pytester.makeconftest(CONFTEST)
    pytester.makefile(".ini", pytest=INI)
    pytester.mkdir("area").joinpath("test_it.py").write_text(TESTS)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=selected)


def test_extended_except_marks_all_values_but_those_kept():
    kept, marked = extended_except(["one"], ["one", "two"])
    assert kept == "one"
    assert marked.values == ("two",)
    assert [mark.name for mark in marked.marks] == ["extended"]


def test_a_value_to_keep_that_is_not_among_the_values_is_an_error():
    with pytest.raises(ValueError, match="expected values to keep among"):
        extended_except(["three"], ["one", "two"])
