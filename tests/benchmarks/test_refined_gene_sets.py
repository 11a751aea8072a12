"""The page of refined gene sets: that it is what was measured, and what it claims."""

from __future__ import annotations

import pytest


@pytest.fixture
def refined(load_benchmark):
    return load_benchmark("refined_gene_sets")


def test_the_page_is_what_was_measured(refined, measured):
    result, page = measured("refined_gene_sets")
    assert page == refined.report(result)
