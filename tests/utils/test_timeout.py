"""A call that does not return costs a minute, not the training."""

import threading

import pytest

from repdyn.utils.attempts import TimeoutRunner


def test_values_and_errors_come_back():
    patience = TimeoutRunner(5)
    assert patience("adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        patience("dividing", lambda: 1 / 0)


def test_a_call_that_hangs_is_given_up_and_the_next_not_tried_until_it_has_returned():
    patience, release = TimeoutRunner(0.05), threading.Event()
    with pytest.raises(TimeoutError, match=r"writing took more than 0.05 s; is the disk or the network mount there\?"):
        patience("writing", release.wait)
    with pytest.raises(TimeoutError, match="reading was not tried: writing still has not returned"):
        patience("reading", lambda: 1)
    release.set()
    assert patience._running is not None
    assert patience._running[1].wait(5)
    assert TimeoutRunner(5)("reading", lambda: 1) == 1
    assert patience("reading", lambda: 1) == 1
