"""Label errors of a reference, and training without them."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

import tosica
from tosica import TOSICA
from tosica.data import CellMatrix, LogNormalization, ModalitySlice
from tosica.linear import (
    LabeledRows,
    RegressionConfig,
    _label_errors,
    find_label_errors,
    fit_regressions,
    subsample_by_label,
)

LOGGED = ModalitySlice(0, 765)
QUIET = {"max_epochs": 1, "accelerator": "cpu"}
KINDS = ["CD14+ Monocyte", "CD19+ B", "CD56+ NK"]


def with_noise(labels, share, seed=0):
    """Labels of which a share is wrong, and which ones."""
    rng = np.random.default_rng(seed)
    wrong = np.sort(rng.permutation(len(labels))[: round(share * len(labels))])
    labels = labels.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, 3, len(wrong))) % 3
    return labels, wrong


@pytest.fixture
def cells():
    """Log-normalized cells of three kinds."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    return adata[adata.obs["bulk_labels"].isin(KINDS)].copy()


@pytest.fixture
def codes(cells):
    return cells.obs["bulk_labels"].cat.codes.to_numpy().astype(np.int64)


def find(cells, labels):
    everything = np.arange(cells.n_obs)
    return find_label_errors(
        LabeledRows(CellMatrix(cells), everything, labels, (LOGGED,))
    )


def assert_found(flagged, wrong, precision=0.9):
    assert len(set(flagged) & set(wrong)) > 0.5 * len(wrong)
    assert len(set(flagged) & set(wrong)) > precision * len(flagged)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_wrong_labels_are_found(cells, codes, share):
    labels, wrong = with_noise(codes, share)
    assert_found(find(cells, labels), wrong)


def test_right_labels_are_kept(cells, codes):
    assert find(cells, codes).size == 0


def test_a_few_label_errors_are_taken_for_hard_cells(cells, codes, monkeypatch):
    labels, wrong = with_noise(codes, 0.03)
    assert len(wrong) > 5
    assert find(cells, labels).size == 0
    monkeypatch.setattr(_label_errors, "_MIN_SHARE", 0.01)
    monkeypatch.setattr(_label_errors, "_MIN_SHARE_OF_MISCLASSIFIED", 0)
    assert find(cells, labels).size > 0


def test_types_that_are_hard_to_tell_apart_are_not_wrong(monkeypatch):
    """With so few cells of 13 types, a classifier is often confident of a wrong one."""
    rng = np.random.default_rng(0)
    share = 0.6 ** np.arange(13)
    labels = np.append(
        np.repeat(np.arange(13), 2), rng.choice(13, 274, p=share / share.sum())
    )
    rates = rng.lognormal(-1.5, 1.2, 400) * rng.lognormal(0, 0.15, (13, 400))
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(rates[labels]).astype(np.float32)))
    matrix = CellMatrix(adata, normalization=LogNormalization(1e4))
    everything = LabeledRows(
        matrix, np.arange(adata.n_obs), labels, (ModalitySlice(0, 400),)
    )
    assert find_label_errors(everything).size == 0
    monkeypatch.setattr(_label_errors, "_MIN_SHARE_OF_MISCLASSIFIED", 0)
    assert len(find_label_errors(everything)) > 0.1 * len(labels)


def test_the_only_cell_of_a_label_is_not_wrong(cells, codes):
    labels, wrong = with_noise(codes, 0.2)
    # No classifier can be fitted without it.
    labels[wrong[0]] = labels.max() + 1
    flagged = find(cells, labels)
    assert_found(flagged, wrong[1:])
    assert wrong[0] not in flagged
    # The same holds if every label has one cell.
    single_cells = np.array(
        [np.flatnonzero(codes == code)[0] for code in np.unique(codes)]
    )
    assert (
        find_label_errors(
            LabeledRows(CellMatrix(cells), single_cells, codes[single_cells], (LOGGED,))
        ).size
        == 0
    )


def test_positions_are_those_of_the_cells(cells, codes):
    """In a reference of which only some cells have labels."""
    labels, wrong = with_noise(codes, 0.2)
    labeled = np.arange(40, cells.n_obs)
    flagged = find_label_errors(
        LabeledRows(CellMatrix(cells), labeled, labels[40:], (LOGGED,))
    )
    assert_found(flagged, wrong[wrong >= 40])


def test_cells_outside_the_subsample_are_scored_too(cells, codes, monkeypatch):
    labels, wrong = with_noise(codes, 0.2)
    monkeypatch.setattr(_label_errors, "MAX_CELLS_CROSS_FIT", 150)
    monkeypatch.setattr(_label_errors, "BLOCK", 7)
    flagged = find(cells, labels)
    assert_found(flagged, wrong)
    assert set(flagged) - set(subsample_by_label(labels, 150))


def test_half_of_a_label_is_kept(cells, codes):
    """The label is given to cells of other types only."""
    labels, _ = with_noise(codes, 0.2)
    labels[:10] = 3
    flagged = find(cells, labels)
    assert flagged.size
    assert len(set(flagged) & set(range(10))) == 5


def test_rare_labels_are_not_flagged(cells, codes):
    """Two of four cells have a wrong label, and would be flagged in a larger label."""
    stem = sc.datasets.pbmc68k_reduced().raw.to_adata()
    stem = stem[stem.obs["bulk_labels"] == "CD34+"][:2].copy()
    joined = ad.concat([stem, cells])
    labels = np.r_[3, 3, with_noise(codes, 0.2)[0]]
    labels[2:4] = 3
    flagged = find(joined, labels)
    assert flagged.size
    assert not set(flagged) & set(range(4))


@pytest.mark.slow
def test_training_leaves_them_out_and_warns(cells, codes, save_and_load):
    cells.obs["given"] = np.array(KINDS)[with_noise(codes, 0.2)[0]]
    cells.obs["truth"] = pd.Categorical(np.array(KINDS)[codes], KINDS)
    is_query = np.arange(cells.n_obs) % 3 == 0
    reference = cells[~is_query].copy()
    query = cells[is_query].copy()
    tosica.pp.build_mask(reference, max_gene_sets=30)
    TOSICA.setup_anndata(reference, labels_key="given")
    obs = reference.obs.copy()
    model = TOSICA(reference, embed_dim=16)
    assert model.mislabeled_indices is None
    with pytest.warns(
        UserWarning, match=r"labels of the reference \(\d+%\) are contradicted by"
    ):
        model.train(**QUIET | {"max_epochs": 20})
    flagged = model.mislabeled_indices
    assert_found(
        flagged, np.flatnonzero(reference.obs["given"] != reference.obs["truth"])
    )
    splits = [model.train_indices, model.validation_indices]
    assert not set(flagged) & set(np.concatenate(splits))
    assert sum(map(len, splits)) + len(flagged) == reference.n_obs
    assert reference.obs.equals(obs)
    misled = TOSICA(reference, embed_dim=16)
    misled.train(**QUIET | {"max_epochs": 20}, check_labels=False)
    of_truth = np.arange(query.n_obs), query.obs["truth"].cat.codes.to_numpy()
    sure, unsure = (
        m.predict(query, soft=True).to_numpy()[of_truth] for m in (model, misled)
    )
    assert sure.mean() > unsure.mean() + 0.03
    assert (model.predict(query) == query.obs["truth"]).mean() > 0.9
    loaded = save_and_load(model)
    np.testing.assert_array_equal(loaded.mislabeled_indices, flagged)
    # They have a label, so that they are not among the cells without one.
    assert model.test_indices.size == 0
    # A further training checks labels anew.
    model.train(**QUIET, check_labels=False)
    assert model.mislabeled_indices.size == 0


def test_the_classifier_is_scikit_learns():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    x = sp.csr_matrix(rng.gamma(1.0, size=(90, 12)) + np.eye(3, 12)[labels])
    z = x.toarray() / np.asarray(x.mean(0)).ravel() ** 0.25
    expected = LogisticRegression(
        C=0.3, class_weight="balanced", fit_intercept=False, tol=1e-8
    ).fit(z, labels)
    config = RegressionConfig(C=0.3, within_class_penalty=0, multinomial=True, tol=1e-6)
    weights = fit_regressions(x, labels, config=config).ridge
    np.testing.assert_allclose(
        softmax(x @ weights.T, axis=1), expected.predict_proba(z), atol=1e-5
    )
