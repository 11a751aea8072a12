"""Arguments that no function can work with: one sentence each, before any work."""

from __future__ import annotations

import numpy as np
import pytest

from tosica._validation import check_count, check_key_added, list_names


@pytest.mark.parametrize("value", [1, 64, np.int64(3)])
def test_counts(value):
    check_count("batch_size", value)


@pytest.mark.parametrize("value", ["64", 1.5, None, True, np.float64(2)])
def test_no_counts(value):
    with pytest.raises(TypeError, match=r"^batch_size must be a whole number, not "):
        check_count("batch_size", value)


@pytest.mark.parametrize("value", [0, -1, np.int64(-3)])
def test_counts_that_are_too_small(value):
    with pytest.raises(ValueError, match=rf"^batch_size must be at least 1, not {value}\.$"):
        check_count("batch_size", value)


def test_keys():
    check_key_added("tosica")


@pytest.mark.parametrize("value", [None, 5, b"a"])
def test_keys_that_are_no_strings(value):
    with pytest.raises(TypeError, match=r"^key_added must be a string, not "):
        check_key_added(value)


@pytest.mark.parametrize("value", ["", "a/b", "/"])
def test_keys_that_no_file_holds(value):
    with pytest.raises(ValueError, match=rf"without a slash, .* could not hold, not '{value}'\.$"):
        check_key_added(value)


def test_names_in_a_message():
    assert list_names(["B", "T's"]) == "'B', \"T's\""
    assert list_names(list("abcde"), most=3) == "'a', 'b', 'c' and 2 more"
