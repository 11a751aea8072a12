from __future__ import annotations

import pytest
from get.annotated_pbmc import LONG_NAME
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.pl._names import shorten, wrap

TERMS = st.text(alphabet="abcdef _-(),/", min_size=1, max_size=120)


@settings(max_examples=100)
@given(st.lists(TERMS, unique=True, max_size=20), st.integers(10, 60))
def test_short_enough_and_different(names, max_length):
    short = shorten(names, max_length)
    assert len(set(short)) == len(names)
    assert all(len(name) <= max_length for name in short)
    assert all(s == n for s, n in zip(short, names, strict=True) if len(n) <= max_length)


def test_cut_at_words():
    name = "positive regulation of antigen receptor-mediated signaling pathway of helper T cells"
    assert shorten([name], 50) == ["positive regulation of … of helper T cells"]


def test_a_name_without_words_is_cut_anywhere():
    (short,) = shorten(["A" * 40 + "B" * 40], 30)
    assert short.startswith("AAAAAAAA")
    assert short.endswith("BBBBBBBB")
    assert len(short) == 30


@pytest.mark.parametrize("where", [0, 20, 40, 60, 80])
def test_names_that_differ_in_one_place_only(where):
    names = [f"{'x' * where} {number:02d} {'y' * (80 - where)}" for number in range(30)]
    assert len(set(shorten(names, 40))) == 30


def test_names_that_differ_at_the_end_need_no_number():
    short = shorten([LONG_NAME + end for end in ("alpha", "beta", "gamma")], 40)
    assert [name.split()[-1] for name in short] == ["alpha", "beta", "gamma"]


def test_a_short_name_that_looks_like_a_cut_one_stays():
    long = "positive regulation of antigen receptor-mediated signaling pathway of helper T cells"
    (cut,) = shorten([long], 50)
    assert shorten([cut, long], 50)[0] == cut
    assert len(set(shorten([cut, long], 50))) == 2


def test_too_short():
    with pytest.raises(ValueError, match="max_name_length must be at least 10, not 5"):
        shorten(["a"], 5)


@settings(max_examples=100)
@given(st.lists(TERMS, unique=True, max_size=20), st.integers(10, 60))
def test_two_lines_that_are_short_enough_and_different(names, max_length):
    wrapped = wrap(names, max_length)
    assert len(set(wrapped)) == len(names)
    assert all(text.count("\n") <= 1 for text in wrapped)
    assert all(len(line) <= max_length for text in wrapped for line in text.split("\n"))
    assert all(text == name for text, name in zip(wrapped, names, strict=True) if text in names)


@pytest.mark.parametrize(
    ("name", "max_length", "wrapped"),
    [
        (
            "antigen processing and presentation of peptide antigen via MHC class I",
            50,
            "antigen processing and presentation\nof peptide antigen via MHC class I",
        ),
        (
            "REACTOME_INTERFERON_ALPHA_BETA_SIGNALING",
            30,
            "REACTOME_INTERFERON_\nALPHA_BETA_SIGNALING",
        ),
        ("B cell activation", 30, "B cell activation"),
        (
            "adenylate cyclase-modulating G protein-coupled receptor signaling pathway",
            50,
            "adenylate cyclase-modulating\nG protein-coupled receptor signaling pathway",
        ),
    ],
)
def test_names_of_two_lines_lose_no_word(name, max_length, wrapped):
    assert wrap([name], max_length) == [wrapped]


def test_names_of_more_than_two_lines_are_shortened_in_the_middle():
    (text,) = wrap([LONG_NAME + LONG_NAME + "alpha"], 50)
    assert " …" in text or "… " in text
    assert text.startswith("positive regulation")
    assert text.endswith("alpha")
