import pytest

from repdyn.utils.attempts import attempts


def test_every_part_is_tried_and_the_first_failure_raised():
    done = []

    def look_up(keys):
        with attempts() as attempt:
            for key in keys:
                with attempt():
                    done.append({"a": 1, "d": 4}[key])

    with pytest.raises(KeyError, match="'b'"):
        look_up("abcd")
    assert done == [1, 4]


def test_a_part_of_others_leaves_its_failures_to_them():
    done = []

    def nested():
        with attempts() as outer:
            with attempts(outer) as inner, inner():
                raise ValueError("inside")
            done.append("between")
            with outer():
                raise ValueError("outside")
            done.append("after")

    with pytest.raises(ValueError, match="^inside$"):
        nested()
    assert done == ["between", "after"]


def test_without_a_failure_nothing_is_raised():
    with attempts() as attempt, attempt():
        pass


def test_an_interruption_is_no_failure_to_be_kept():
    done = []

    def interrupted():
        with attempts() as attempt:
            with attempt():
                raise KeyboardInterrupt
            done.append("more")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not done
