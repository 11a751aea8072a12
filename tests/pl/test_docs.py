"""Docstrings of the plots, as ``help`` shows them."""

from __future__ import annotations

import inspect

import pytest

import tosica
from tosica.pl._docs import fill_docs


@pytest.mark.parametrize("name", tosica.pl.__all__)
def test_every_parameter_is_documented(name):
    function = getattr(tosica.pl, name)
    lines = inspect.getdoc(function).splitlines()
    described = {
        word.strip() for line in lines if not line.startswith(" ") for word in line.split(",")
    }
    for parameter in inspect.signature(function).parameters.values():
        assert str(parameter).split(":")[0] in described


@pytest.mark.parametrize("name", tosica.pl.__all__)
def test_all_parts_are_filled_in(name):
    lines = inspect.getdoc(getattr(tosica.pl, name)).splitlines()
    assert not [line for line in lines if line.startswith("{")]
    assert f"tosica.pl.{name}(" in "\n".join(lines)


def test_shared_text_is_filled_in_and_braces_of_examples_stay():
    @fill_docs(parameters="adata\n    Read.\n", rest="See {name}.\n")
    def draw():
        """Draw ``{"a": 1}``.

        {parameters}

        {rest}
        """

    assert draw.__doc__ == 'Draw ``{"a": 1}``.\n\nadata\n    Read.\n\nSee draw.'


def test_unknown_parts_are_refused():
    with pytest.raises(KeyError, match="parameter"):

        @fill_docs(parameters="adata")
        def draw():
            """Draw.

            {parameter}
            """


def test_functions_without_docstring_stay_callable():
    @fill_docs(parameters="adata")
    def draw():
        return 1

    assert draw() == 1
