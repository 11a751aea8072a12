from __future__ import annotations

import numpy as np
import pytest
from get.annotated_pbmc import annotated_pbmc

import tosica


def test_bins_count_right_labels():
    adata = annotated_pbmc()
    table = tosica.tl.reliability(adata, "bulk_labels", n_bins=5)
    named = (adata.obs["tosica_prediction"] != "Unknown").to_numpy()
    probability = adata.obs["tosica_probability"].to_numpy()
    predicted = adata.obs["tosica_prediction"].astype(str)
    right = (predicted == adata.obs["bulk_labels"].astype(str)).to_numpy()
    assert table["n_cells"].sum() == named.sum()
    for row in table.itertuples():
        inside = named & (probability > row.low) & (probability <= row.high)
        assert row.n_cells == inside.sum()
        assert row.accuracy == pytest.approx(right[inside].mean())
        assert row.probability == pytest.approx(probability[inside].mean())
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high


def test_refuses():
    adata = annotated_pbmc()
    with pytest.raises(ValueError, match="have no label in common"):
        tosica.tl.reliability(adata, "louvain")
    with pytest.raises(ValueError, match="n_bins must be at least 1"):
        tosica.tl.reliability(adata, "bulk_labels", n_bins=0)
    adata.obs["tosica_prediction"] = "Unknown"
    with pytest.raises(ValueError, match=r"All cells .* are 'Unknown'"):
        tosica.tl.reliability(adata, "bulk_labels")
    del adata.obs["tosica_probability"]
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='tosica'\)"):
        tosica.tl.reliability(adata, "bulk_labels")


def test_probability_of_one_is_in_the_last_bin():
    adata = annotated_pbmc()
    adata.obs["tosica_probability"] = np.float32(1)
    table = tosica.tl.reliability(adata, "bulk_labels")
    assert table["high"].to_list() == [1.0]
