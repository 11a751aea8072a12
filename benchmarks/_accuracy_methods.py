"""The methods of the accuracy benchmark, called as in their documentation.

A method is a function of a reference, a query and a seed. It returns probabilities, ``(n_cells,
n_labels)``. All methods get the same genes, log-normalized in ``X``, with counts in
``layers["counts"]``.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

import tosica
from benchmarks._accuracy_tasks import COUNTS, LABEL
from benchmarks._models import train_default
from benchmarks._original import probabilities, train_original

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from sklearn.base import ClassifierMixin, TransformerMixin

    Method = Callable[[AnnData, AnnData, int], pd.DataFrame]

# Coverages of the label sets of tosica.
COVERAGES = (0.8, 0.9, 0.95)
# Maximum of scaled expression in scanpy's tutorials.
_LARGEST = 10.0


def run_tosica(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Tosica with defaults."""
    model = train_default(reference, seed)
    probabilities = model.predict(query, soft=True)
    # With few held-out cells there are no label sets.
    with contextlib.suppress(ValueError):
        probabilities.attrs["sets"] = {
            coverage: model.predict_set(query, coverage=coverage, allow_empty=True)
            for coverage in COVERAGES
        }
    return probabilities


def run_celltypist(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Scaled logistic regression, one label against the rest (Domínguez Conde et al., 2022)."""
    import celltypist

    # The check expects counts of all genes of the organism. Feature selection is off by default.
    model = celltypist.train(reference, labels=LABEL, check_expression=False, n_jobs=1)
    return celltypist.annotate(query, model=model).probability_matrix


def run_scanvi(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """ScANVI on an scVI model of reference and query (Xu et al., 2021)."""
    cells = ad.concat({"reference": reference, "query": query}, label="origin")
    is_query = cells.obs["origin"] == "query"
    cells.obs["seen_label"] = np.where(is_query, "unlabeled", cells.obs[LABEL])
    model = fit_scanvi(cells, "origin", seed)
    return model.predict(cells[is_query].copy(), soft=True)


def fit_scanvi(cells: AnnData, batch_key: str, seed: int) -> scvi.model.SCANVI:
    """Train scVI, then scANVI, on cells whose label in ``obs["seen_label"]`` may be "unlabeled"."""
    scvi.settings.seed = seed
    options = {"accelerator": "cpu", "enable_progress_bar": False}
    scvi.model.SCVI.setup_anndata(cells, layer=COUNTS, batch_key=batch_key)
    unsupervised = scvi.model.SCVI(cells, n_layers=2, n_latent=30, gene_likelihood="nb")
    unsupervised.train(**options)
    model = scvi.model.SCANVI.from_scvi_model(
        unsupervised, "unlabeled", labels_key="seen_label"
    )
    model.train(max_epochs=20, n_samples_per_label=100, **options)
    return model


def run_logistic(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Logistic regression."""
    return _classified(LogisticRegression(max_iter=1000), reference, query)


def run_svm(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Linear SVM, with probabilities by cross-validated Platt scaling."""
    return _support_vectors(reference, query, seed)


def run_platt_svm(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Linear SVM, with the label of the highest probability after Platt scaling."""
    return _support_vectors(reference, query, seed, platts_labels=True)


def run_scaled_svm(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Linear SVM on genes that are standardized by the reference."""
    return _support_vectors(reference, query, seed, *standardized())


def standardized() -> tuple[StandardScaler, FunctionTransformer]:
    """Transformations of ``sc.pp.scale(max_value=10)`` that can be applied to new cells."""
    bounds = {"a_min": -_LARGEST, "a_max": _LARGEST}
    return StandardScaler(), FunctionTransformer(np.clip, kw_args=bounds)


def _support_vectors(
    reference: AnnData,
    query: AnnData,
    seed: int,
    *scaling: TransformerMixin,
    platts_labels: bool = False,
) -> pd.DataFrame:
    """Labels of a linear SVM, with the highest probability of Platt scaling.

    Platt scaling is done for each label, so its best label may differ from that of the SVM.
    """
    train = reference.X
    test = query.X
    if scaling:
        pipeline = make_pipeline(*scaling)
        train = pipeline.fit_transform(train.toarray())
        test = pipeline.transform(test.toarray())
    labels = reference.obs[LABEL].astype(str).to_numpy()
    n_folds = max(2, min(5, int(reference.obs[LABEL].value_counts().min())))
    svm = LinearSVC(random_state=seed)
    platt = CalibratedClassifierCV(svm, cv=n_folds, ensemble=False)
    platt.fit(train, labels)
    probabilities = platt.predict_proba(test)
    if not platts_labels:
        predicted = platt.calibrated_classifiers_[0].estimator.predict(test)
        _swap_best(probabilities, np.searchsorted(platt.classes_, predicted))
    return pd.DataFrame(probabilities, index=query.obs_names, columns=platt.classes_)


def _swap_best(probabilities: np.ndarray, codes: np.ndarray) -> None:
    """Give each cell's label the highest probability, in exchange for its own."""
    cells = np.arange(len(probabilities))
    best = probabilities.argmax(1)
    highest = probabilities[cells, best]
    probabilities[cells, best] = probabilities[cells, codes]
    probabilities[cells, codes] = highest


def run_knn(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """15 neighbors on 50 principal components."""
    n_components = min(50, reference.n_obs - 1, reference.n_vars - 1)
    pipeline = make_pipeline(
        PCA(n_components, random_state=seed),
        KNeighborsClassifier(min(15, reference.n_obs)),
    )
    return _classified(pipeline, reference, query, dense=True)


def _classified(
    classifier: ClassifierMixin,
    reference: AnnData,
    query: AnnData,
    *,
    dense: bool = False,
) -> pd.DataFrame:
    train = reference.X.toarray() if dense else reference.X
    test = query.X.toarray() if dense else query.X
    classifier.fit(train, reference.obs[LABEL].astype(str).to_numpy())
    return pd.DataFrame(
        classifier.predict_proba(test),
        index=query.obs_names,
        columns=classifier.classes_,
    )


def run_literal(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """The network and defaults of the authors' code."""
    tosica.pp.build_mask(reference, max_gene_sets=300)
    # Their last token has every gene.
    every_gene = sp.csr_matrix(np.ones((reference.n_vars, 1), dtype=bool))
    mask = sp.hstack([reference.varm["tosica_mask"], every_gene])
    codes = reference.obs[LABEL].cat.codes.to_numpy()
    model = train_original(reference.X.toarray(), codes, mask, seed)
    return pd.DataFrame(
        probabilities(model, query.X.toarray()),
        index=query.obs_names,
        columns=reference.obs[LABEL].cat.categories,
    )


METHODS: dict[str, tuple[str, Method]] = {
    "tosica": ("**tosica**", run_tosica),
    "celltypist": ("CellTypist", run_celltypist),
    "scanvi": ("scANVI (also trained on the query)", run_scanvi),
    "logistic": ("logistic regression", run_logistic),
    "svm": ("linear SVM", run_svm),
    "svm platt": ("linear SVM, Platt's labels", run_platt_svm),
    "svm scaled": ("linear SVM, scaled genes", run_scaled_svm),
    "knn": ("15 neighbors on PCA", run_knn),
    "literal": ("authors' code, defaults", run_literal),
}


def quietly(
    method: Method, reference: AnnData, query: AnnData, seed: int
) -> pd.DataFrame:
    """Run a method on copies, without the warnings of its libraries."""
    with warnings.catch_warnings(action="ignore"):
        # Set before each run, because scanpy's tools change the number of threads of torch.
        torch.set_num_threads(1)
        return method(reference.copy(), query.copy(), seed)
