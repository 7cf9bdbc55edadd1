"""Which tests are run once more if they fail."""

import pytest


@pytest.mark.process
def test_one_of_processes_is(request):
    assert request.node.get_closest_marker("flaky").kwargs == {"reruns": 1}


@pytest.mark.process
@pytest.mark.once
def test_one_of_what_must_not_be_lost_is_not(request):
    assert request.node.get_closest_marker("flaky") is None


def test_another_is_not(request):
    assert request.node.get_closest_marker("flaky") is None
