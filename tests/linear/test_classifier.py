"""The linear branch: its fit, its temperature, and its part in a model."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import linear_model

import tosica
from tosica import TOSICA, linear
from tosica.data import CellMatrix, LogNormalization, ModalitySlice
from tosica.linear import (
    CrossValidated,
    LabeledRows,
    cross_validate,
    fit_classifier,
    fit_regressions,
    linear_to_network_ratio,
    split_among_tokens,
    subsample_by_label,
)
from tosica.linear._logistic import DEFAULT_CONFIG

COUNTS = ModalitySlice(0, 30)
NORMALIZATION = LogNormalization(1e4)
# As the small reference's: types in the first three, and some genes in two.
SETS = [range(8), range(8, 16), range(16, 24), range(4, 20, 3), range(24, 30)]


def members(sets, n_genes=30):
    """Which gene is in which set."""
    table = np.zeros((len(sets), n_genes))
    for row, genes in enumerate(sets):
        table[row, list(genes)] = 1
    return sp.csr_matrix(table)


TOKENS = members(SETS)
EVERY = np.arange(90)
UNCALIBRATED = CrossValidated(temperature=1.0)


def codes(adata):
    return adata.obs["kind"].cat.codes.to_numpy().astype(np.int64)


def normalized(adata, target_sum=1e4):
    return CellMatrix(adata, normalization=LogNormalization(target_sum))


def expression(adata, cells=slice(None)):
    return NORMALIZATION.normalize_block(sp.csr_matrix(adata.X))[cells]


def fit(adata, cells, penalties=UNCALIBRATED):
    return fit_classifier(
        expression(adata, cells), codes(adata)[cells], 3, TOKENS, penalties
    )


def scores_of(classifier, adata):
    return expression(adata) @ classifier.weights.T + classifier.biases


# ------------------------------------------------------------------ weights to tokens


def test_a_weight_is_divided_in_proportion_to_relevance():
    tokens = members([[0, 1], [1, 2], [1]], 3)
    weights = np.array([[5.0, 8.0, -3.0], [2.0, 3.0, 4.0]])
    # Weights of a label without any relevant set are split equally.
    relevance = np.array([[3.0, 1.0, 4.0], [0.0, 0.0, 0.0]])
    pairs, is_inactive = split_among_tokens(weights, relevance, tokens)
    assert is_inactive.tolist() == [False, True]
    assert_allclose(pairs, [[5, 3, 1, -3, 4], [2, 1, 1, 4, 1]])


# ------------------------------------------------------------------ the fit


def test_types_are_separated_each_by_its_own_set(toy):
    # Three cells of one label, whose logits are raised.
    cells = np.setdiff1d(np.arange(20, 90), np.flatnonzero(codes(toy) == 2)[10:-3])
    classifier = fit(toy, cells)
    assert (scores_of(classifier, toy).argmax(1) == codes(toy)).mean() > 0.95
    assert not len(classifier.inactive)
    regressions = fit_regressions(expression(toy), codes(toy), gene_sets=TOKENS)
    assert_array_equal(regressions.relevance.argmax(1), [0, 1, 2])


def test_a_label_without_cells_is_never_predicted(toy):
    cells = np.flatnonzero(codes(toy) != 1)
    classifier = fit(toy, cells)
    scores = scores_of(classifier, toy)
    assert (classifier.weights[1] == 0).all()
    assert (scores[cells].argmax(1) == codes(toy)[cells]).mean() > 0.95
    assert (scores[:, 1] < scores.max(1) - 50).all()


# ------------------------------------------------------------------ temperature


LOGGED = ModalitySlice(0, 765)
CLEAR = ["CD14+ Monocyte", "CD19+ B", "CD56+ NK"]
BY_FIFTEEN = members([range(i, i + 15) for i in range(0, 765, 15)], 765)


def temperature_of(adata, labels):
    return temperature(CellMatrix(adata), labels, LOGGED, BY_FIFTEEN)


def temperature(matrix, labels, modality_slice, tokens):
    labels = np.unique(labels, return_inverse=True)[1]
    rows = LabeledRows(matrix, np.arange(matrix.n_obs), labels, (modality_slice,))
    return cross_validate(rows, tokens).temperature


@pytest.fixture(scope="module")
def cells():
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


def test_types_that_overlap_have_a_higher_temperature_whatever_their_sizes(cells):
    kinds = cells.obs["bulk_labels"]
    sizes = kinds[kinds.str.contains("CD8")].value_counts()
    asked = []
    for types in (CLEAR, sizes.index[sizes > 30]):
        of_type = [np.flatnonzero(kinds == kind)[:31] for kind in types]
        cells_of_types = np.concatenate(of_type)
        asked.append(temperature_of(cells[cells_of_types], kinds.iloc[cells_of_types]))
    assert asked[1] > 1.3 * asked[0]
    assert asked[1] > 2.2


def test_few_cells_hardly_change_the_temperature(cells):
    kinds = cells.obs["bulk_labels"]
    two = np.concatenate([np.flatnonzero(kinds == kind)[:2] for kind in CLEAR[1:]])
    assert temperature_of(cells[two], kinds.iloc[two]) == pytest.approx(2, rel=0.2)
    single_cells = [np.flatnonzero(kinds == kind)[0] for kind in CLEAR]
    assert temperature_of(cells[single_cells], kinds.iloc[single_cells]) == 2
    # Beside other labels they are left out of the fit of the temperature.
    clear = np.flatnonzero(kinds.isin(CLEAR[:2]))
    with_one = np.append(clear, single_cells[2])
    assert np.isfinite(temperature_of(cells[with_one], kinds.iloc[with_one]))


def test_a_subsample_of_large_references_is_used(monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    x = rng.poisson(1 + np.eye(3)[labels] @ np.eye(3, 20)).astype(np.float32)
    subsample = subsample_by_label(labels, 200)
    # Only cells of the subsample are used.
    x[np.setdiff1d(np.arange(len(labels)), subsample)] = 1
    changed = ad.AnnData(sp.csr_matrix(x))
    modality_slice = ModalitySlice(0, 20)
    matrix = normalized(changed, 20)
    tokens = members([range(12), range(8, 20)], 20)
    everything = temperature(matrix, labels, modality_slice, tokens)
    monkeypatch.setattr(linear._classifier, "MAX_CELLS_CROSS_FIT", 200)
    actual = temperature(matrix, labels, modality_slice, tokens)
    expected = cross_validate(
        LabeledRows(matrix, subsample, labels[subsample], (modality_slice,)), tokens
    )
    assert actual == expected.temperature
    assert actual != everything


# ------------------------------------------------------------------ in a model


def network_logits(model, x):
    """Logits of the network alone."""
    with torch.no_grad():
        x = model.module.clip(x)
        return model.module.head(model.module.annotate(x, attention=False).latent)


def test_weights_are_named_by_gene_and_label(toy, train):
    model = train(toy, max_epochs=1)
    table = model.get_linear_weights()
    assert table.columns.tolist() == ["a", "b", "c"]
    assert table.index.equals(toy.var_names)
    assert (table.dtypes == np.float32).all()
    # The mean over labels is subtracted.
    assert_allclose(table.sum(axis=1), 0, atol=1e-4)


def test_no_weights_without_it(toy, train):
    model = train(toy, max_epochs=1, linear=False)
    assert "linear branch" not in repr(model)
    with pytest.raises(ValueError, match="has no linear branch"):
        model.get_linear_weights()


def by_rows(toy, cells):
    """The linear branch of a model of these cells."""
    penalties = cross_validate(
        LabeledRows(normalized(toy), EVERY, codes(toy), (COUNTS,)), TOKENS
    )
    assert penalties.temperature != pytest.approx(1, abs=0.1)
    classifier = fit(toy, cells, penalties)
    ratio = linear_to_network_ratio(len(EVERY))
    return classifier._replace(
        weights=ratio * classifier.weights, biases=ratio * classifier.biases
    )


def test_the_last_fit_has_all_cells(toy, train):
    expected = by_rows(toy, EVERY)
    model = train(toy.copy())
    assert_allclose(
        model.get_linear_weights().T, expected.weights, rtol=1e-3, atol=1e-3
    )
    assert_allclose(model.module.linear.bias, expected.biases, rtol=1e-3, atol=1e-3)
    assert_allclose(model.module.linear.clip_max, expected.clip_max, rtol=1e-6)
    without_refit = train(toy.copy(), refit=False)
    expected = by_rows(toy, without_refit.train_indices)
    assert_allclose(
        without_refit.get_linear_weights().T, expected.weights, rtol=1e-3, atol=1e-3
    )


def test_validation_is_the_networks_alone(toy, train):
    model = train(toy, refit=False, calibrate=False)
    validation = model.validation_indices
    model.module.linear.clip_max.fill_(torch.inf)
    logits = network_logits(
        model, torch.from_numpy(expression(toy, validation).toarray())
    )
    labels = torch.from_numpy(codes(toy)[validation])
    loss = torch.nn.functional.cross_entropy(logits, labels)
    last = float(model.history["validation_loss"].iloc[-1].iloc[0])
    assert last == pytest.approx(float(loss), rel=1e-3)


def test_tokens_start_from_it_once(toy, train, monkeypatch):
    calls = []
    kind = tosica.module.MaskedEmbedding
    init_from_linear = kind.init_from_linear

    def keep(self, scores, x, mean):
        calls.append((scores, x, mean))
        init_from_linear(self, scores, x, mean)

    monkeypatch.setattr(kind, "init_from_linear", keep)
    model = train(toy, max_epochs=1, refit=False)
    ((_, x, mean),) = calls
    torch.testing.assert_close(mean, x.mean(0))
    assert x.shape == (len(model.train_indices), 30)
    # Further training goes on from the trained tokens.
    model.train(max_epochs=1, accelerator="cpu")
    assert len(calls) == 1
    train(toy, max_epochs=1, linear=False)
    assert len(calls) == 1


def test_ppca_of_missing_genes_is_saved(toy_model, toy_query, save_and_load):
    assert toy_model.module.linear.loadings.any()
    loaded = save_and_load(toy_model)
    lacking = toy_query[:, 1:].copy()
    assert loaded.predict(lacking, soft=True).equals(
        toy_model.predict(lacking, soft=True)
    )


def test_training_warns_of_labels_without_a_gene_set():
    # The last genes separate the labels, and are in no set. All cells have the same total.
    x = np.full((40, 12), 0.7, dtype=np.float32)
    x[:20, 8:10] = x[20:, 10:] = 2.1
    names = [f"cell{i}" for i in range(40)]
    adata = ad.AnnData(
        x, obs=pd.DataFrame({"kind": np.repeat(["a", "b"], 20)}, index=names)
    )
    adata.var_names = [f"G{i}" for i in range(12)]
    sets = {"one": adata.var_names[:4], "two": adata.var_names[4:8]}
    tosica.pp.build_mask(adata, sets, min_genes=1)
    TOSICA.setup_anndata(adata, labels_key="kind")
    model = TOSICA(adata, embed_dim=16, modules=False)
    with pytest.warns(
        UserWarning, match=r"No gene set distinguishes these labels: 'a', 'b'\."
    ):
        model.train(max_epochs=1, accelerator="cpu")


def test_cross_validation_chooses_the_weight_of_the_group_lasso():
    """Where many genes differ a little, sets of them help, and sets of one gene do not."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 60)
    raised = np.kron(np.eye(3), np.full((1, 400), 0.15))[labels]
    counts = rng.poisson(0.5 + raised).astype(np.float32)
    rows = normalized(ad.AnnData(counts))
    data = LabeledRows(rows, np.arange(180), labels, (ModalitySlice(0, 1200),))
    assert (
        cross_validate(
            data, sp.csr_matrix(np.kron(np.eye(6), np.ones((1, 200))))
        ).lasso_share
        == 0.5
    )
    assert cross_validate(data, sp.csr_matrix(np.eye(1200))).lasso_share < 0.5


# ------------------------------------------------------------------ groups of labels


def two_groups(n_of_label, noise):
    """Four labels of ten genes each, in two groups that many genes tell apart a little."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), n_of_label)
    groups = np.array([0, 0, 1, 1])
    own = np.kron(np.eye(4), np.full((1, 10), 2.0))
    shared = np.kron(np.eye(2), np.full((1, 300), 0.2))[groups]
    rate = 0.5 + np.hstack([own, shared])[labels]
    counts = rng.poisson(rate * rng.gamma(1 / noise, noise, rate.shape))
    matrix = normalized(ad.AnnData(counts.astype(np.float32)))
    slices = (ModalitySlice(0, 640),)
    tokens = members([range(i, i + 40) for i in range(0, 640, 40)], 640)
    return LabeledRows(matrix, np.arange(len(labels)), labels, slices), groups, tokens


def test_groups_get_a_weight_where_labels_share_many_genes():
    data, groups, tokens = two_groups(12, noise=2.0)
    assert cross_validate(data, tokens, [groups]).group_weight > 0
    assert cross_validate(data, tokens).group_weight == 0
    # Groups that nothing tells apart.
    assert cross_validate(data, tokens, [np.array([0, 1, 0, 1])]).group_weight == 0


def test_the_weights_of_a_group_are_added_to_those_of_its_labels():
    data, _, tokens = two_groups(12, noise=2.0)
    # The last label is alone in its group.
    groups = np.array([0, 0, 0, 1])
    penalties = CrossValidated(temperature=1.0, lasso_share=0.0, group_weight=0.5)
    args = data.expression(), data.labels, 4, tokens, penalties
    added = fit_classifier(*args, levels=[groups]).weights
    alone = fit_classifier(*args).weights
    fitted = fit_regressions(
        data.expression(),
        data.labels,
        gene_sets=tokens,
        groups=np.array([[True, True, True, False]]),
    ).ridge
    expected = fitted[:4] + 0.5 * fitted[[4, 4, 4, 3]]
    assert_allclose(added, expected - expected.mean(0), atol=1e-6)
    # What tells the labels of a group apart stays as it is.
    assert_allclose(added[0] - added[1], alone[0] - alone[1], atol=1e-6)


def test_few_genes_of_labels_that_overlap_do_not_overfit():
    """With far fewer genes than cells, the usual penalties learn noise, and stronger ones are chosen."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 900, p=[0.6, 0.3, 0.1])
    rate = np.exp(rng.normal(0, 0.4, (3, 40)))
    adata = ad.AnnData(rng.poisson(rate[labels]).astype(np.float32))
    data = LabeledRows(
        normalized(adata, 40),
        np.arange(300),
        labels[:300],
        (ModalitySlice(0, 40),),
    )
    tokens = sp.csr_matrix(np.kron(np.eye(8), np.ones((1, 5))))
    penalties = cross_validate(data, tokens)
    assert penalties.config.C < 0.1
    new = LabeledRows(
        data.rows, np.arange(300, 900), labels[300:], data.slices
    ).expression()
    fits = [
        fit_classifier(
            data.expression(),
            data.labels,
            3,
            tokens,
            CrossValidated(temperature=1.0, config=config),
        )
        for config in (penalties.config, DEFAULT_CONFIG)
    ]
    best, usual = (
        ((new @ fit.weights.T + fit.biases).argmax(1) == labels[300:]).mean()
        for fit in fits
    )
    peer = linear_model.LogisticRegression(max_iter=500).fit(
        data.expression(), data.labels
    )
    assert best > max(usual, peer.score(new, labels[300:]) - 0.01)


@pytest.mark.parametrize(("n_rare", "power"), [(0, 0.25), (2000, 0.125)])
def test_genes_that_are_rarely_detected_are_scaled_up_less(n_rare, power):
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 240)
    frequent = np.exp(rng.normal(0.5, 0.3, (3, 30)))[labels]
    counts = rng.poisson(np.hstack([frequent, np.full((240, n_rare), 0.01)])).astype(
        np.float32
    )
    slices = (ModalitySlice(0, 30 + n_rare),)
    rows = normalized(ad.AnnData(counts), 100)
    data = LabeledRows(rows, np.arange(240), labels, slices)
    tokens = sp.csr_matrix(np.kron(np.eye(5), np.ones((1, (30 + n_rare) // 5))))
    assert cross_validate(data, tokens).config.gene_scale_power == power
