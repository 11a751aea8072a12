"""Draw the figure of "Reading a model": how fast the probability falls, by what is removed first.

python docs/faithfulness_figure.py docs/_static/faithfulness.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scanpy as sc
import scvi
import seaborn as sns

import tosica


def main(target: Path) -> None:
    """Two models of PBMCs, with and without a token that sees every gene."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    is_query = np.zeros(adata.n_obs, dtype=bool)
    is_query[np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")[::3]] = True
    figure, axes = plt.subplots(1, 2, figsize=(12, 3.4), layout="constrained", sharey=True)
    for n_unannotated, ax in enumerate(axes):
        ref, query = adata[~is_query].copy(), adata[is_query].copy()
        scvi.settings.seed = 0
        tosica.pp.build_mask(ref, max_gene_sets=100, n_unannotated=n_unannotated)
        tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        model = tosica.TOSICA(ref, embed_dim=24, direct=False)
        model.train(max_epochs=40, plan_kwargs={"lr": 5e-3}, enable_progress_bar=False)
        model.annotate(query)
        tosica.tl.weight_attention(query, model)
        tosica.tl.attribute(query, model)
        tosica.tl.faithfulness(query, model)
        title = ["no unannotated token", "one unannotated token, never removed"][n_unannotated]
        tosica.pl.faithfulness(query, title=title, ax=ax)
        sns.move_legend(ax, "upper left", bbox_to_anchor=(1, 1))
        right = query.obs["tosica_prediction"].astype(str) == query.obs["bulk_labels"].astype(str)
        print(title, f"accuracy {right.mean():.3f}")
        print(query.uns["faithfulness"]["area"].round(4).to_string())
    axes[1].set_ylabel("")
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
