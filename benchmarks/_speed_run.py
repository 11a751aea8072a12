"""One measurement of `benchmarks.speed`, of the package that PYTHONPATH names.

It may be an earlier commit, so that nothing of the benchmarks is imported here.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import scvi
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import tosica

if TYPE_CHECKING:
    from anndata import AnnData


def log_normalized(adata: AnnData) -> np.ndarray:
    """Dense logarithms of counts, scaled to 10 000 in each cell."""
    counts = csr_matrix(adata.X).toarray()
    return np.log1p(counts / counts.sum(1, keepdims=True) * 1e4)


def measure(
    path: str, labels_key: str, train_size: float, seed: int
) -> dict[str, float]:
    """Processor seconds of each step, and accuracies."""
    scvi.settings.seed = seed
    adata = ad.read_h5ad(path)
    labels = adata.obs[labels_key].astype(str).to_numpy()
    train, test = train_test_split(
        np.arange(adata.n_obs),
        train_size=train_size,
        stratify=labels,
        random_state=seed,
    )
    reference = adata[np.sort(train)].copy()
    query = adata[np.sort(test)].copy()
    truth = query.obs[labels_key].astype(str)
    times = {"start": time.process_time()}
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=labels_key)
    times["mask"] = time.process_time()
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False)
    times["train"] = time.process_time()
    model.annotate(query)
    times["annotate"] = time.process_time()
    tosica.tl.attribute(query, model)
    times["attribute"] = time.process_time()
    predicted = query.obs["tosica_prediction"].astype(str)
    regression = LogisticRegression(max_iter=1000)
    regression.fit(log_normalized(reference), reference.obs[labels_key].astype(str))
    times["regression"] = time.process_time()
    seconds = np.diff(list(times.values())).tolist()
    by_regression = regression.predict(log_normalized(query))
    return {
        **dict(zip([*times][1:], seconds, strict=True)),
        "accuracy": float((predicted == truth).mean()),
        "accuracy of the regression": float((by_regression == truth).mean()),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for logger_name in ("lightning.pytorch", "tosica"):
        logging.getLogger(logger_name).setLevel(logging.ERROR)
    file, key, size, number = sys.argv[1:]
    print("FOUND", json.dumps(measure(file, key, json.loads(size), int(number))))
