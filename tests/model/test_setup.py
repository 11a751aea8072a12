"""What setup_anndata accepts, refuses, keeps and writes; labels of few cells and of every type."""

import logging
import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _cells import untrained
from anndata import AnnData
from matplotlib import rcParams
from matplotlib.colors import to_hex
from numpy.testing import assert_array_equal

import tosica
from tosica import TOSICA, pp

SCVI_KEYS = {
    "obs/_scvi_batch",
    "obs/_scvi_labels",
    "uns/_scvi_manager_uuid",
    "uns/_scvi_uuid",
}


# --------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("form", ["csr", "csc", "float64", "int64", "fortran"])
def test_writes_only_what_scvi_writes(toy, contents, new_keys, form):
    if form != "csr":
        toy.X = {
            "csc": lambda: sp.csc_matrix(toy.X),
            "float64": lambda: toy.X.astype(np.float64),
            "int64": lambda: toy.X.astype(np.int64),
            "fortran": lambda: np.asfortranarray(toy.X.toarray()),
        }[form]()
    original = contents(toy)
    model = untrained(toy, batch_key="donor")
    assert new_keys(original, contents(toy)) == SCVI_KEYS
    assert model.summary_stats["n_batch"] == 2
    assert_array_equal(toy.obs["_scvi_batch"], toy.obs["donor"].cat.codes)


# --------------------------------------------------------------------------- labels


@pytest.mark.parametrize("ordered", [False, True])
def test_labels_keep_the_order_of_their_categories(toy, ordered):
    """Unused categories are no labels."""
    toy.obs["kind"] = pd.Categorical(
        toy.obs["kind"], ["c", "none of these", "a", "b", "nor this"], ordered=ordered
    )
    toy.uns["kind_colors"] = ["#000001", "#000002", "#000003", "#000004", "#000005"]
    model = untrained(toy)
    assert model.labels == ["c", "a", "b"]
    assert model.module.head.out_features == 3
    state = model.registry["field_registries"]["labels"]["state_registry"]
    assert state["colors"] == ["#000001", "#000003", "#000004"]
    assert_array_equal(
        toy.obs["_scvi_labels"],
        toy.obs["kind"].map({"c": 0, "a": 1, "b": 2}).astype(int),
    )


@pytest.mark.parametrize(
    "name", ["?", "zzz", "Unknown"], ids=["first", "last", "Unknown"]
)
def test_cells_without_a_label_are_no_class(toy, name):
    kind = toy.obs["kind"].astype(str).to_numpy(dtype=object)
    kind[:10] = name
    toy.obs["kind"] = pd.Categorical(kind)
    colors = dict(zip("abc", toy.uns["kind_colors"], strict=True)) | {name: "#eeeeee"}
    toy.uns["kind_colors"] = [
        colors[category] for category in toy.obs["kind"].cat.categories
    ]
    model = untrained(toy, unlabeled_category=name)
    state = model.registry["field_registries"]["labels"]["state_registry"]
    assert state["colors"] == ["#aa0000", "#00bb00", "#0000cc", "#eeeeee"]
    assert model.labels == ["a", "b", "c"]
    assert model.module.head.out_features == 3
    # scvi-tools' convention: the code behind the last label.
    assert set(toy.obs["_scvi_labels"][:10]) == {3}


@pytest.mark.parametrize(
    "colors",
    [None, ["#aa0000"], ["#aa0000", "#00bb00", "grey50"]],
    ids=["none", "too few", "of R"],
)
def test_without_colors_scanpys_are_taken(toy, colors):
    del toy.uns["kind_colors"]
    if colors is not None:
        toy.uns["kind_colors"] = colors
    state = untrained(toy).registry["field_registries"]["labels"]["state_registry"]
    assert state["colors"] == list(
        map(to_hex, rcParams["axes.prop_cycle"].by_key()["color"][:3])
    )


@pytest.mark.parametrize(
    ("n", "palette"), [(24, "default_28"), (60, "default_102"), (110, None)], ids=str
)
def test_colors_of_many_labels(n, palette):
    rng = np.random.default_rng(0)
    adata = AnnData(rng.poisson(2.0, (2 * n, 12)).astype(np.float32))
    adata.obs["kind"] = np.arange(2 * n) % n
    pp.build_mask(adata, {"s": adata.var_names[:6].tolist()})
    state = untrained(adata).registry["field_registries"]["labels"]["state_registry"]
    expected = getattr(sc.pl.palettes, palette)[:n] if palette else ["#808080"] * n
    assert state["colors"] == expected


# --------------------------------------------------------------------------- other arguments


def test_mask_in_another_form_under_another_key(toy):
    expected = untrained(toy.copy()).registry["field_registries"]["mask"][
        "state_registry"
    ]
    for form in (sp.csc_matrix, np.asarray):
        toy.varm["other"] = form(toy.varm["tosica_mask"].toarray())
        toy.uns["other"] = toy.uns["tosica_mask"]
        state = untrained(toy, mask_key="other").registry["field_registries"]["mask"][
            "state_registry"
        ]
        assert_array_equal(state["genes"], expected["genes"])
        assert_array_equal(state["indptr"], expected["indptr"])


def test_labels_with_a_single_cell_are_warned_of(toy):
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories(["rarer", "rare", "?"])
    toy.obs.loc[["cell4", "cell5", "cell6"], "kind"] = ["rare", "rarer", "?"]
    with pytest.warns(
        UserWarning, match=r"single cell in adata.obs\['kind'\]: 'rare', 'rarer'"
    ):
        model = untrained(toy, unlabeled_category="?")
    assert model.labels == ["a", "b", "c", "rarer", "rare"]


# --------------------------------------------------------------------------- wrong input


def _column(key, change):
    def spoil(adata):
        adata.obs[key] = change(adata.obs[key])

    return spoil


def _x(change):
    def spoil(adata):
        adata.X = change(adata.X.toarray())

    return spoil


def _scaled(adata):
    adata.raw = adata
    adata.layers["counts"] = adata.X.copy()
    adata.X = adata.X.toarray() - 1


def _without(attribute, key):
    def delete(adata):
        del getattr(adata, attribute)[key]

    return delete


def _mask_of_others(adata):
    of_other_sets = adata.copy()
    pp.build_mask(of_other_sets, {"only": adata.var_names[:9].tolist()})
    adata.uns["tosica_mask"] = of_other_sets.uns["tosica_mask"]


def _mask_emptied(adata):
    mask = adata.varm["tosica_mask"].toarray()
    mask[:, 1] = False
    adata.varm["tosica_mask"] = sp.csr_matrix(mask)


def _lose(column):
    return column.where(column.index != "cell4")


def _number(column):
    return np.array([1, "1", 2], dtype=object)[np.arange(len(column)) % 3]


WRONG = {
    "labels missing": (_without("obs", "kind"), KeyError, "no column"),
    "labels NaN": (
        _column("kind", _lose),
        ValueError,
        "1 cells have no label (NaN) in adata.obs['kind']",
    ),
    "labels of one category": (
        _column("kind", lambda kind: pd.Categorical(["a"] * len(kind))),
        ValueError,
        "needs at least two different labels to tell apart; found 'a'.",
    ),
    "names of cells": (
        _column("kind", lambda c: c.index),
        ValueError,
        "has 90 labels for 90 cells, such as 'cell0'",
    ),
    "halves": (
        _column("kind", lambda c: np.arange(len(c)) // 1.5),
        ValueError,
        "are names or measurements of cells",
    ),
    "same text": (
        _column("kind", _number),
        ValueError,
        "adata.obs['kind'] has different labels with the same text ('1')",
    ),
    "lists": (
        _column("kind", lambda c: [[name] for name in c]),
        TypeError,
        "adata.obs['kind'] holds lists, tuples",
    ),
    "NaN": (
        _x(lambda x: np.where(x == x.max(), np.nan, x)),
        ValueError,
        "adata.X holds NaN (first in cell ",
    ),
    "scaled": (_scaled, ValueError, "adata.layers['counts'] (layer='counts')"),
    "no mask": (
        _without("varm", "tosica_mask"),
        KeyError,
        "call tosica.pp.build_mask(adata) first.",
    ),
    "no mask in uns": (
        _without("uns", "tosica_mask"),
        KeyError,
        "There is no mask in adata.varm['tosica_mask'] and",
    ),
    "other mask": (
        _mask_of_others,
        ValueError,
        "has 4 gene sets and adata.uns['tosica_mask'] names 1",
    ),
    "empty set": (
        _mask_emptied,
        ValueError,
        "1 gene sets of adata.varm['tosica_mask'] have no gene in adata ('beta')",
    ),
    "batch NaN": (
        _column("donor", _lose),
        ValueError,
        "adata.obs['donor'] has cells without a batch (NaN).",
    ),
    "batches are days": (
        _column("donor", lambda c: pd.to_datetime("2026-01-01")),
        TypeError,
        "adata.obs['donor'] holds values of type Timestamp, not names of batches: make",
    ),
    "batches are intervals": (
        _column("donor", lambda c: pd.cut(np.arange(len(c)), 2)),
        TypeError,
        "adata.obs['donor'] holds values of type Interval, not names of batches: make",
    ),
    "batch missing": (_without("obs", "donor"), KeyError, "no column"),
}


@pytest.mark.parametrize(("change", "error", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused_and_left_alone(toy, unchanged, change, error, sentence):
    change(toy)
    with unchanged(toy), pytest.raises(error, match=re.escape(sentence)):
        TOSICA.setup_anndata(toy, labels_key="kind", batch_key="donor")


# What means "no label", and other spellings of label "a".
NO_LABELS = ["nan", "NA", "unknown", "Unassigned", " ", "#N/A"]
SPELLINGS = [" A", "\ta"]


@pytest.mark.parametrize("text", [*NO_LABELS, *SPELLINGS])
def test_texts_that_mean_no_label_or_another_one(toy, text):
    kind = toy.obs["kind"].astype(str).to_numpy(dtype=object)
    kind[np.flatnonzero(kind == "a")[:3]] = text
    toy.obs["kind"], original = pd.Categorical(kind), kind.copy()
    with pytest.warns(UserWarning, match=re.escape(f"{text!r}")):
        model = untrained(toy)
    assert model.labels == ["a", "b", "c"]
    assert list(toy.obs["kind"]) == list(original)
    codes = toy.obs["_scvi_labels"][kind == text]
    assert set(codes) == ({0} if text in SPELLINGS else {3})


@pytest.mark.parametrize("category", ["?", "NA"])
def test_missing_values_beside_the_unlabeled_category(toy, category):
    kind = toy.obs["kind"].astype(object)
    kind.iloc[:4], kind.iloc[4:6] = None, category
    toy.obs["kind"] = kind
    untrained(toy, unlabeled_category=category)
    assert list(toy.obs["_scvi_labels"][:6]) == [3] * 6


def test_an_unlabeled_category_beside_missing_values_is_warned_of_if_no_cell_has_it(
    toy,
):
    kind = toy.obs["kind"].astype(object)
    kind.iloc[:4], kind.iloc[4:6] = None, "later"
    toy.obs["kind"] = kind
    with pytest.warns(
        UserWarning, match="has no cell 'latr', the unlabeled_category, .* 'later'"
    ):
        model = untrained(toy, unlabeled_category="latr")
    assert model.labels == ["a", "b", "c", "later"]


def test_an_unlabeled_number_is_found_beside_missing_values(toy):
    kind = toy.obs["kind"].cat.codes.astype(float) + 0.5
    kind.iloc[:4], kind.iloc[4:6] = np.nan, -1
    toy.obs["kind"] = kind
    model = untrained(toy, unlabeled_category=-1)
    assert model.labels == ["0.5", "1.5", "2.5"]
    assert list(toy.obs["_scvi_labels"][:6]) == [3] * 6


@pytest.mark.parametrize(
    "of", [slice(0, 60), np.arange(90) % 2 == 0, [5, 3, *range(20, 60)]]
)
def test_a_view_becomes_data_of_its_own(toy, of):
    view = toy[of]
    TOSICA.setup_anndata(view, labels_key="kind")
    assert not view.is_view
    assert "_scvi_labels" not in toy.obs


@pytest.mark.parametrize("key", ["kind", "donor"])
def test_two_columns_of_one_name_are_refused(toy, key):
    toy.obs = pd.concat([toy.obs, toy.obs[[key]]], axis=1)
    with pytest.raises(ValueError, match=f"adata.obs has several columns '{key}'"):
        TOSICA.setup_anndata(toy, labels_key="kind", batch_key="donor")


def test_features_beside_genes_are_named(toy):
    toy.var["feature_types"] = (
        ["Antibody Capture"] * 3 + ["CRISPR Guide Capture"] + ["Gene Expression"] * 26
    )
    with pytest.warns(
        UserWarning, match=r"\(3 'Antibody Capture', 1 'CRISPR Guide Capture'\)"
    ):
        TOSICA.setup_anndata(toy, labels_key="kind")


# --------------------------------------------------------------------------- labels of too few cells


@pytest.fixture
def rare(toy):
    """Labels "one", "two" and "three" of so many cells."""
    kind = np.array(toy.obs["kind"], dtype=object)
    kind[[4]], kind[[10, 11]], kind[[20, 21, 22]] = "one", "two", "three"
    toy.obs["kind"] = kind
    return toy


def test_rare_labels_are_unlabeled_and_named(
    rare, toy_query, train, caplog, contents, tmp_path
):
    original = contents(rare)["obs/kind"]
    model = train(rare, setup={"min_cells": 3})
    assert "min_cells=3 cells are left out ('one' with 1, 'two' with 2)" in caplog.text
    assert model.labels == ["a", "b", "c", "three"]
    trained = np.union1d(model.train_indices, model.validation_indices)
    assert not {4, 10, 11} & set(trained)
    assert sum(model.training_.label_counts.values()) == len(trained) == 87
    assert contents(rare)["obs/kind"] == original
    assert set(model.predict(toy_query)) <= set(model.labels)
    assert model.predict(rare, soft=True).shape == (90, 4)
    model.save(tmp_path / "model")
    # The same reference, and one in which a label is rare that was not.
    rare.obs.loc["cell20", "kind"] = "a"
    loaded = TOSICA.load(tmp_path / "model", adata=rare)
    assert loaded.labels == model.labels
    loaded.train(max_epochs=1, accelerator="cpu")
    assert loaded.training_.label_counts["three"] == 2
    # Labels that the model lacks are left out only where they are rare.
    rare.obs.loc[["cell5", "cell6", "cell7"], "kind"] = "new"
    with pytest.raises(
        ValueError, match="has labels that the model does not know: 'new'"
    ):
        TOSICA.load(tmp_path / "model", adata=rare)


def test_by_default_no_label_is_left_out(rare, caplog):
    with (
        caplog.at_level(logging.INFO, "tosica"),
        pytest.warns(
            UserWarning, match=r"single cell in adata.obs\['kind'\]: 'one'.*min_cells=2"
        ),
    ):
        TOSICA.setup_anndata(rare, labels_key="kind")
    assert "left out" not in caplog.text
    assert len(TOSICA(rare).labels) == 6
    with pytest.raises(
        ValueError,
        match="different labels of min_cells=50 cells or more to tell apart; found none",
    ):
        TOSICA.setup_anndata(rare, labels_key="kind", min_cells=50)


# --------------------------------------------------------------------------- types of labels


ORDER = ["young", "old", "Alt"]
TYPES = {
    "integers": (lambda kind: kind.cat.codes.astype("int64") + 3, "int64", False),
    "booleans": (lambda kind: kind == "a", "bool", False),
    "floats": (lambda kind: kind.cat.codes / 2, "float64", False),
    "nullable": (lambda kind: kind.cat.codes.astype("Int64"), "int64", False),
    "objects": (lambda kind: kind.cat.codes.astype(object), "int64", False),
    "ordered integers": (
        lambda kind: kind.cat.rename_categories([3, 1, 2]).cat.as_ordered(),
        "int64",
        True,
    ),
    "ordered text": (
        lambda kind: kind.cat.rename_categories(ORDER).cat.as_ordered(),
        None,
        True,
    ),
}


def known(adata, name):
    return pd.Series(TYPES[name][0](adata.obs["kind"]), index=adata.obs_names)


@pytest.mark.parametrize("name", TYPES)
def test_predictions_have_the_type_of_the_labels(
    toy, toy_query, train, fast_plan, tmp_path, name
):
    _, dtype, ordered = TYPES[name]
    truth = known(toy_query, name)
    toy.obs["kind"] = known(toy, name)
    of_labels = toy.obs["kind"].astype("category").cat.categories
    model = train(toy, max_epochs=6, plan_kwargs=fast_plan)
    model.save(tmp_path / "model")
    for fitted in (model, TOSICA.load(tmp_path / "model")):
        assert fitted.labels == [str(label) for label in of_labels]
        predictions = fitted.predict(toy_query)
        assert predictions.dtype == (object if dtype is None else np.dtype(dtype))
        assert (predictions == truth.to_numpy()).mean() > 0.9
        soft = fitted.predict(toy_query, soft=True)
        sets = fitted.predict_set(toy_query, coverage=0.8)
        assert list(soft.columns) == list(sets.columns) == list(of_labels)
        assert soft.idxmax(axis=1).tolist() == predictions.tolist()
        fitted.annotate(toy_query)
        prediction = toy_query.obs["tosica_prediction"]
        assert prediction.tolist() == predictions.tolist()
        assert prediction.cat.ordered == ordered
        assert list(prediction.cat.categories) == list(of_labels)
        if dtype is not None:
            assert prediction.cat.categories.dtype == np.dtype(dtype)
    with_reference = TOSICA.load(tmp_path / "model", adata=toy)
    assert with_reference.predict(toy_query).tolist() == predictions.tolist()


@pytest.mark.parametrize(
    ("name", "ending"),
    [("integers", "zarr"), ("booleans", "h5ad"), ("ordered text", "h5ad")],
)
@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
def test_files_hold_the_type(toy, toy_query, train, tmp_path, name, ending):
    toy.obs["kind"] = known(toy, name)
    model = train(toy)
    source, output = tmp_path / "query.h5ad", tmp_path / f"annotated.{ending}"
    toy_query.write_h5ad(source)
    tosica.tl.annotate_file(source, model, output, cells_per_part=20)
    model.annotate(toy_query)
    expected = toy_query.obs["tosica_prediction"]
    toy_query.write_h5ad(tmp_path / "own.h5ad")
    joined = ad.read_h5ad(output) if ending == "h5ad" else ad.read_zarr(output)
    for annotated in (joined, ad.read_h5ad(tmp_path / "own.h5ad")):
        pd.testing.assert_series_equal(annotated.obs["tosica_prediction"], expected)


def test_numbers_become_text_beside_unknown(toy, toy_query, train, caplog, tmp_path):
    toy.obs["kind"] = known(toy, "integers")
    train(toy).annotate(toy_query, cutoff=0.9)
    assert "Unknown" in set(toy_query.obs["tosica_prediction"])
    assert set(toy_query.obs["tosica_prediction"]) <= {"3", "4", "5", "Unknown"}
    assert (
        "annotate: labels are written as text, because files hold no int64 beside 'Unknown'; cutoff=0 calls no cell so"
    ) in caplog.messages
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    # In an order, it is the last.
    toy.obs["kind"] = pd.Categorical(
        toy.obs["kind"].map({3: "young", 4: "old", 5: "Alt"}), ORDER, ordered=True
    )
    train(toy).annotate(toy_query, cutoff=0.9)
    prediction = toy_query.obs["tosica_prediction"]
    assert prediction.cat.ordered
    assert prediction.cat.categories[-1] == "Unknown"


def test_tools_take_labels_that_are_numbers(toy, toy_query, train):
    truth = known(toy_query, "integers")
    toy.obs["kind"] = known(toy, "integers")
    model = train(toy)
    model.annotate(toy_query, probabilities=True)
    assert list(toy_query.obsm["tosica_probabilities"].columns) == ["3", "4", "5"]
    toy_query.obs["truth"] = truth
    [accuracy] = tosica.tl.evaluate(toy_query, "truth").summary["accuracy"]
    assert accuracy == (toy_query.obs["tosica_prediction"] == truth).mean()
    toy_query.obs["cluster"] = np.where(truth == 3, "x", "y")
    tosica.tl.majority_vote(toy_query, "cluster")
    assert toy_query.obs["tosica_majority_vote"].cat.categories.dtype == np.int64
    tosica.tl.majority_vote(toy_query, "cluster", 1)
    assert "Heterogeneous" in set(toy_query.obs["tosica_majority_vote"])
    tosica.tl.attribute(toy_query, model, cells=True)
    assert set(tosica.get.explain(toy_query).index) <= {"3", "4", "5"}
    tosica.tl.rank_gene_sets(toy_query, groupby="tosica_prediction")
    tosica.tl.novelty(toy_query, model)
    tosica.pl.top_genes(toy_query, show=False)
    tosica.pl.confusion(toy_query, "truth", show=False)
    toy_query.obsm["X_umap"] = np.random.default_rng(0).normal(size=(60, 2))
    sc.pl.umap(toy_query, color="tosica_prediction", show=False)
    # Labels that a person corrected are known by their numbers, too.
    model.recalibrate(toy_query, "truth")


def test_new_labels_of_the_same_type(toy, train):
    codes = known(toy, "integers")
    reference = toy[codes != 5].copy()
    # What marks unlabeled cells may be of another type.
    reference.obs["kind"] = codes[codes != 5].astype(object)
    reference.obs.loc["cell4", "kind"] = "none"
    model = train(reference, setup={"unlabeled_category": "none"})
    toy.obs["kind"] = codes
    grown = TOSICA.load_query_data(toy, model)
    grown.fit_new_labels()
    assert grown.labels == ["3", "4", "5"]
    assert grown.predict(toy).dtype == np.int64
    toy.obs["kind"] = codes.astype(str).where(codes != 5, "new")
    grown = TOSICA.load_query_data(toy, model)
    assert grown.labels == ["3", "4", "new"]
    assert grown.predict(toy).dtype == object
    assert model.predict(toy).dtype == np.int64


def test_whole_numbers_beside_cells_without_a_label(toy, train):
    codes = known(toy, "integers")
    reference = toy[codes != 5].copy()
    reference.obs["kind"] = codes[codes != 5]
    model = train(reference)
    # Pandas holds them as float64.
    toy.obs["kind"] = codes.where(np.arange(90) % 4 > 0)
    model.recalibrate(toy, "kind")
    assert len(model.training_.held_out_probabilities[0]) == 44
    grown = TOSICA.load_query_data(toy, model)
    assert grown.labels == ["3", "4", "5"]
    grown.fit_new_labels()
    assert grown.predict(toy).dtype == np.int64
    # Labels that were learnt from such a column have a point.
    reference.obs["kind"] = reference.obs["kind"].astype(float)
    model = train(reference)
    model.recalibrate(toy, "kind")
    assert len(model.training_.held_out_probabilities[0]) == 44
    assert TOSICA.load_query_data(toy, model).labels == ["3.0", "4.0", "5.0"]


def test_labels_may_be_dates(toy):
    days = pd.to_timedelta(np.arange(90) % 3, unit="D")
    toy.obs["day"] = pd.to_datetime("2026-01-01") + days
    TOSICA.setup_anndata(toy, "day")
    model = TOSICA(toy, embed_dim=8, n_heads=2)
    model.train(max_epochs=1)
    assert [label[:10] for label in model.labels] == [
        "2026-01-01",
        "2026-01-02",
        "2026-01-03",
    ]
