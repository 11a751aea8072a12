"""The yardstick of the benchmarks: the published network, trained as it trains."""

from __future__ import annotations

import numpy as np
import torch


def test_labels_become_as_frequent_as_the_most_frequent(load_benchmark):
    codes = np.array([0, 1, 1, 1, 2, 2])
    drawn = load_benchmark("_original").oversampled(codes, 0)
    assert (np.bincount(codes[drawn]) == 3).all()
    # No cell is left out.
    assert set(drawn) == set(range(6))


def test_the_original_gives_its_logits(load_benchmark):
    """Of all tokens and of the class token alone, they are the same."""
    original = load_benchmark("_original")
    torch.manual_seed(0)
    mask = np.random.default_rng(0).random((20, 6)) < 0.4
    model = original.LiteralTOSICA(mask, 3, embed_dim=8, n_heads=2).eval()
    x = torch.rand(5, 20)
    with torch.no_grad():
        _, expected, _ = model(x)
        torch.testing.assert_close(original.class_token_logits(model, x), expected)
