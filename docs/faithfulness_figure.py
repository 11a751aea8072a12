"""Draw the figure of "Reading a model": how fast the probability falls, by what is removed first.

python docs/faithfulness_figure.py docs/_static/faithfulness.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scanpy as sc
import scvi

import tosica


def main(target: Path) -> None:
    """One model of PBMCs with defaults, and the cells that it was not trained on."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    is_query = np.zeros(adata.n_obs, dtype=bool)
    is_query[np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")[::3]] = True
    ref, query = adata[~is_query].copy(), adata[is_query].copy()
    scvi.settings.seed = 0
    tosica.pp.build_mask(ref)
    tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    model = tosica.TOSICA(ref)
    model.train(enable_progress_bar=False)
    model.annotate(query)
    tosica.tl.attribute(query, model)
    tosica.tl.faithfulness(query, model)
    tosica.pl.faithfulness(query, save=target, dpi=200)
    right = query.obs["tosica_prediction"].astype(str) == query.obs["bulk_labels"].astype(str)
    print(f"accuracy {right.mean():.3f}")
    print(query.uns["faithfulness"]["area"].round(4).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
