"""Arguments that no function can work with: one sentence each, before any work."""

from __future__ import annotations

import numpy as np
import pytest

from tosica._validation import (
    check_choice,
    check_count,
    check_data,
    check_flags,
    check_fraction,
    check_key_added,
    check_names,
    check_number,
    file_columns,
    list_names,
    only_known,
)


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


@pytest.mark.parametrize("value", [0.5, 0, 1, np.float32(0.25), np.int64(1)])
def test_fractions(value):
    check_fraction("cutoff", value)


@pytest.mark.parametrize(
    ("zero", "one", "value", "bounds"),
    [
        (True, True, 1.5, "lie between 0 and 1"),
        (False, True, 0, "be above 0 and at most 1"),
        (True, False, 1, "be at least 0 and below 1"),
        (False, False, 1.0, "lie between 0 and 1"),
        (False, False, float("nan"), "lie between 0 and 1"),
    ],
)
def test_fractions_out_of_range(zero, one, value, bounds):
    with pytest.raises(ValueError, match=rf"^cutoff must {bounds}, not {value}\.$"):
        check_fraction("cutoff", value, zero=zero, one=one)


def test_numbers():
    check_number("lr", np.float32(1e-3), above=0)
    check_number("lr", 0, least=0)
    check_number("vmin", None, optional=True)
    with pytest.raises(ValueError, match=r"^lr must be above 0, not 0\.$"):
        check_number("lr", 0, above=0)
    with pytest.raises(ValueError, match=r"^lr must be at least 2 or None, not 1\.5\.$"):
        check_number("lr", 1.5, least=2, optional=True)
    with pytest.raises(TypeError, match=r"^lr must be a number, not '1'\.$"):
        check_number("lr", "1")


def test_flags():
    check_flags(copy=True, genes=np.bool_(False))
    with pytest.raises(TypeError, match=r"^genes must be True or False, not 1\.$"):
        check_flags(copy=True, genes=1)


def test_choices():
    check_choice("how", "max", ("mean", "max"))
    check_choice("how", None, ("mean",), optional=True)
    with pytest.raises(ValueError, match=r"^how must be 'mean', 'max' or None, not 'min'\.$"):
        check_choice("how", "min", ("mean", "max"), optional=True)
    with pytest.raises(TypeError, match=r"^how must be 'mean', not \['mean'\]\.$"):
        check_choice("how", ["mean"], ("mean",))


def test_names():
    assert check_names("groups", "B cell") == ["B cell"]
    # Clusters are often numbered.
    assert check_names("groups", (0, np.int64(1), "2")) == ["0", "1", "2"]
    with pytest.raises(TypeError, match=r"^groups must hold strings only, not True\.$"):
        check_names("groups", [True])


def test_long_values_are_not_shown_whole():
    with pytest.raises(TypeError, match=r"^groups must hold strings only, not a list\.$"):
        check_names("groups", [["a" * 100]])
    with pytest.raises(TypeError, match=r"^adata must be an AnnData, not an object\.$"):
        check_data(object())
    with pytest.raises(ValueError, match=r"^how must be 'mean', not 'a{56}…\.$"):
        check_choice("how", "a" * 100, ("mean",))


def test_what_there_is_instead_of_a_name():
    assert only_known("kinds", ["kind", "donor"]) == ", only 'kind', 'donor'; did you mean 'kind'?"
    assert only_known("KIND", ["kind"]) == ", only 'kind'; did you mean 'kind'?"
    assert only_known("x", ["kind"]) == ", only 'kind'."
    assert only_known("x", []) == ", nor any other."


def test_columns_of_labels():
    assert file_columns(["B/plasma", "T"], "here") == ["B|plasma", "T"]
    with pytest.raises(ValueError, match=r"^here has the labels 'a\|b' and 'a/b', which would be"):
        file_columns(["a|b", "T", "a/b"], "here")
