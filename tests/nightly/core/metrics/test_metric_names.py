"""Names of metrics with settings and subsets: what is read is what is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repdyn.metrics.names import base_name, file_stem, parsed, spelled

WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)
)
SETTINGS = st.dictionaries(
    WORDS,
    st.one_of(st.booleans(), NUMBERS, WORDS.filter(lambda word: word not in {"true", "false"})),
    max_size=4,
)
BASES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)


@given(BASES, SETTINGS)
def test_a_written_name_is_read_as_what_it_was_written_from(base, settings):
    name = spelled(base, settings)
    assert parsed(f"{name}@no_sink") == (base, settings, "no_sink")
    # and there is one way to write it
    assert spelled(*parsed(name)[:2]) == name
    assert base_name(name) == base


@given(BASES, SETTINGS, SETTINGS)
def test_different_settings_have_different_names_and_files(base, some, others):
    if spelled(base, some) != spelled(base, others):
        assert file_stem(spelled(base, some)) != file_stem(spelled(base, others))
    assert not set(file_stem(spelled(base, some))) & set('[]/\\:*?"<>|, ')
