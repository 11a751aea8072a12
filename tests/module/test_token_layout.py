"""Tokens of one modality and of several on one axis."""

import numpy as np
import pytest

from tosica.data import CenteredLogRatio, LogNormalization, ModalitySlice
from tosica.module import TokenLayout


@pytest.fixture
def two() -> TokenLayout:
    """Two gene sets of RNA, one of antibodies, and an unannotated token of RNA."""
    return TokenLayout(
        np.array([0, 2, 3, 5, 8]),
        np.array([0, 1, 2, 3, 4, 0, 1, 2]),
        (ModalitySlice(0, 3, LogNormalization(1e4)), ModalitySlice(3, 5, CenteredLogRatio())),
        np.array([0, 0, 1, 0]),
        np.array([False, False, False, True]),
        names=("rna:a", "rna:b", "protein:c", "rna:unannotated"),
        n_unannotated=1,
        # The masks have their pairs in the order of their own tokens.
        pair_order=np.array([0, 1, 2, 6, 7, 3, 4, 5]),
    )


def test_sizes(two):
    assert (two.n_genes, two.n_tokens, two.n_gene_sets) == (5, 4, 3)


@pytest.mark.parametrize(("modalities", "expected"), [((0,), [0, 1, 3]), ((1,), [2]), ((0, 1), [0, 1, 2, 3])])
def test_tokens_of_some_modalities(two, modalities, expected):
    assert two.tokens_of(modalities).tolist() == expected


def test_values_of_pairs_come_into_the_order_of_the_tokens(two):
    rna, protein = np.arange(6), np.array([10, 11])
    assert two.join_pairs([rna, protein]).tolist() == [0, 1, 2, 10, 11, 3, 4, 5]


def test_modalities_without_values_have_nan(two):
    joined = two.join_pairs([np.arange(6), None])
    np.testing.assert_array_equal(joined, np.float32([0, 1, 2, np.nan, np.nan, 3, 4, 5]))


def test_one_modality():
    tokens = TokenLayout.of_one_modality(np.array([0, 2, 5]), np.array([0, 2, 0, 1, 2]), 3)
    assert tokens.slices == (ModalitySlice(0, 3, None),)
    assert tokens.no_dropout.tolist() == [False, True]
    assert tokens.join_pairs([np.arange(5)]).tolist() == [0, 1, 2, 3, 4]
    counts = TokenLayout.of_one_modality(np.array([0, 1]), np.array([0]), 1, target_sum=50.0)
    assert counts.slices == (ModalitySlice(0, 1, LogNormalization(50.0)),)
