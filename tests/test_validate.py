"""Parts of messages about arguments; each constraint is tested by ``tests/wrong_input``."""

from __future__ import annotations

import numpy as np
import pytest

from tosica._text import describe_value, list_names, only_known
from tosica._validate import Fraction, Names, Number, as_names, validate_params


def test_names_in_a_message():
    assert list_names(["B", "T's"]) == "'B', \"T's\""
    assert list_names(list("abcde"), max_listed=3) == "'a', 'b', 'c' and 2 more"


def test_what_there_is_instead_of_a_name():
    assert (
        only_known("kinds", ["kind", "donor"])
        == ", only 'kind', 'donor'; did you mean 'kind'?"
    )
    assert only_known("KIND", ["kind"]) == ", only 'kind'; did you mean 'kind'?"
    assert only_known("x", ["kind"]) == ", only 'kind'."
    assert only_known("x", []) == ", nor any other."


def test_clusters_are_numbered():
    assert as_names("B cell") == ["B cell"]
    assert as_names((0, np.int64(1), "2")) == ["0", "1", "2"]
    Names().check("groups", iter("ab"))
    with pytest.raises(TypeError, match="names must be"):
        as_names([True])


def test_long_values_are_not_shown_whole():
    assert describe_value([["a" * 100]]) == "a list"
    assert describe_value(object()) == "an object"
    assert describe_value("a" * 100).endswith("…")


def test_numbers_of_numpy_and_bounds_are_taken():
    Number(above=0).check("lr", np.float32(1e-3))
    for value in (0, 1, np.float32(0.25), np.int64(1)):
        Fraction().check("cutoff", value)
    with pytest.raises(
        ValueError, match="cutoff must be a finite number, above 0 and below 1"
    ):
        Fraction(zero=False, one=False).check("cutoff", 1.0)


def test_arguments_that_python_refuses_get_its_words():
    @validate_params(share=Fraction())
    def keep(share, *, copy: bool = False):
        return share

    assert keep(0.5) == 0.5
    with pytest.raises(
        TypeError, match="missing 1 required positional argument: 'share'"
    ):
        keep()
    with pytest.raises(ValueError, match="share"):
        keep(2)


def test_a_parameter_without_a_rule_is_refused_at_decoration():
    def keep(share: complex): ...

    with pytest.raises(TypeError, match=r"no rule is known for 'share'.*'complex'"):
        validate_params()(keep)
    with pytest.raises(TypeError, match=r"keep has no parameters \['part'\]"):
        validate_params(part=Fraction())(keep)
    assert validate_params(share=Fraction())(keep)(0.5) is None
