"""Queries that are odd as a whole: right labels with what is doubted, or one sentence, in Python and in a shell."""

import warnings

import numpy as np
import pandas as pd
import pytest

import tosica
from tosica import cli
from tosica.gs import write_gmt


def one_cell(query):
    return query[:1]


def one_type(query):
    return query[query.obs["bulk_labels"] == "CD19+ B"]


def other_genes(query):
    """Genes have names of other genes, so that no cell is of a type of the reference."""
    odd = query.copy()
    odd.var_names = np.random.default_rng(0).permutation(odd.var_names)
    return odd


def few_cells_with_other_genes(query):
    return other_genes(query[:20])


def other_species(query):
    odd = query.copy()
    odd.var_names = odd.var_names.str.capitalize()
    return odd


def a_tenth_of_the_genes(query):
    return query[:, ::10]


# By query: the check that finds it, or none.
DOUBTED = {
    one_cell: "few cells",
    one_type: None,
    other_genes: "other genes",
    few_cells_with_other_genes: "other genes",
}
# By query: what the sentence says.
REFUSED = {
    other_species: "look like mouse symbols",
    a_tenth_of_the_genes: "take all that were measured",
}


@pytest.fixture
def odd(pbmc_query):
    """Make an odd query; the report needs no time for a UMAP of it."""

    def make(change):
        query = change(pbmc_query).copy()
        query.obsm["X_umap"] = np.random.default_rng(0).random((query.n_obs, 2))
        return query

    return make


@pytest.fixture(scope="module")
def folder(pbmc_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries") / "model"
    pbmc_model.save(folder)
    return folder


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("change", DOUBTED, ids=lambda change: change.__name__)
def test_labels_and_what_is_doubted(change, odd, pbmc_model, tmp_path):
    query = odd(change)
    has_other_genes = DOUBTED[change] == "other genes"
    pbmc_model.annotate(query, adapt=not has_other_genes)
    tosica.tl.novelty(query, pbmc_model)
    checks = set(tosica.tl.check(query)["check"])
    assert DOUBTED[change] is None or DOUBTED[change] in checks
    assert ("other genes" in checks) == has_other_genes
    if change is one_type:
        assert (query.obs["tosica_prediction"] == "CD19+ B").mean() > 0.9
    page = tosica.report(query, tmp_path / "page.html").read_text(encoding="utf8")
    assert "What to doubt" in page


@pytest.mark.parametrize("change", DOUBTED, ids=lambda change: change.__name__)
def test_the_same_on_the_command_line(change, odd, folder, tmp_path, capsys):
    query, output = tmp_path / "query.h5ad", tmp_path / "annotated.h5ad"
    odd(change).write_h5ad(query)
    for command in ("annotate", "novelty"):
        arguments = [command, query, "--model", folder, "-o", output, "--overwrite"]
        no_report = ["--no-report"] if command == "annotate" else []
        assert run(*arguments, *no_report) == 0
    n_cells = "1 cell," if change is one_cell else " cells,"
    assert n_cells in capsys.readouterr().err
    assert run("report", output, "-o", tmp_path / "page.html") == 0


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_has_no_answer_is_refused(
    change, odd, pbmc_model, folder, unchanged, tmp_path, capsys
):
    query = odd(change)
    for adapt in (False, True):
        with unchanged(query), pytest.raises(ValueError, match=REFUSED[change]):
            pbmc_model.annotate(query, adapt=adapt)
    query.write_h5ad(tmp_path / "query.h5ad")
    for command in ("annotate", "novelty"):
        arguments = [tmp_path / "query.h5ad", "--model", folder]
        assert run(command, *arguments, "-o", tmp_path / "o.h5ad") == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tosica: error: The query has only")
        assert REFUSED[change] in err
        assert err.count("\n") == 1
    assert not (tmp_path / "o.h5ad").exists()


def test_clusters_of_three_cells(pbmc_model, pbmc_query):
    pbmc_model.annotate(pbmc_query)
    of_three = (np.arange(pbmc_query.n_obs) // 3).astype(str)
    pbmc_query.obs["cluster"] = pd.Categorical(of_three)
    tosica.tl.novelty(pbmc_query, pbmc_model, over_clustering="cluster")
    table = pbmc_query.uns["tosica_novelty"]
    assert set(table["cluster"]) == set(of_three)
    # So few cells tell nothing: chance makes one in twenty of them significant at most.
    assert (table["pvalue"] <= 0.05).mean() <= 0.05
    tosica.tl.majority_vote(pbmc_query, "cluster")
    votes = pbmc_query.obs.groupby("cluster", observed=True)["tosica_majority_vote"]
    assert (votes.nunique() == 1).all()


def test_labels_without_cells(pbmc_model, pbmc_query, tmp_path):
    pbmc_query.obsm["X_umap"] = np.zeros((pbmc_query.n_obs, 2))
    pbmc_model.annotate(pbmc_query)
    known = pbmc_query.obs["bulk_labels"].astype(str)
    pbmc_query.obs["known"] = pd.Categorical(known, [*sorted(set(known)), "Martian"])
    evaluation = tosica.tl.evaluate(pbmc_query, "known")
    assert "Martian" not in evaluation.per_class.index
    assert (
        not tosica.tl.check(pbmc_query, labels_key="known")["finding"]
        .str.contains("Martian")
        .any()
    )
    pbmc_query.obs["known"] = "Martian"
    with pytest.raises(ValueError, match="have no label in common"):
        tosica.tl.evaluate(pbmc_query, "known")
    page = tosica.report(pbmc_query, tmp_path / "page.html", labels_key="known")
    assert "the agreement cannot be measured" in page.read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("gene_sets", "words"),
    [
        (
            {"mine": ["Kryptonite", "Unobtainium", "Vibranium"] * 2},
            "none of 1 gene sets",
        ),
        ({"mine": ["CD79A"]}, "has at least 5 of them in adata"),
        (
            {"mine": ["Cd79a", "Cd79b", "Ms4a1", "Cd19", "Cd74", "Cd37"]},
            "pass --organism 'human' to map them",
        ),
    ],
    ids=["unknown names", "one gene", "another species"],
)
def test_own_sets_on_the_command_line(gene_sets, words, pbmc_ref, tmp_path, capsys):
    reference, sets = tmp_path / "reference.h5ad", tmp_path / "sets.gmt"
    del pbmc_ref.varm["tosica_mask"], pbmc_ref.uns["tosica_mask"]
    pbmc_ref.write_h5ad(reference)
    write_gmt({name: dict.fromkeys(genes) for name, genes in gene_sets.items()}, sets)
    arguments = ["train", reference, "--labels-key", "bulk_labels", "--gene-sets", sets]
    with warnings.catch_warnings(action="ignore"):
        assert run(*arguments, "-o", tmp_path / "model") == 1
    err = capsys.readouterr().err
    assert words in err
    assert "min_genes" not in err
    assert err.count("\n") == 1
    assert not (tmp_path / "model").exists()
