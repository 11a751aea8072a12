"""Models of the original code: the same results, and one sentence for folders that are wrong."""

import pathlib
import warnings
from types import SimpleNamespace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from _literal import LiteralTOSICA
from anndata import AnnData
from numpy.testing import assert_allclose, assert_array_equal

from tosica import TOSICA, pp

MIXED = "each token mixes numbers of several gene sets, so attention under a gene set's name is"
LABELS = ["NK", "B cell", "T/NKT", "1"]
# Labels of the reference are random, so that the check of labels would find errors.
QUICK = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "batch_size": 8,
    "check_labels": False,
}


def write_project(
    folder,
    *,
    n_genes=24,
    n_sets=5,
    n_full=1,
    width=8,
    n_heads=4,
    n_layers=2,
    labels=LABELS,
):
    """Write the files that the original writes for a network with random weights; return what is in them."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    mask = rng.random((n_genes, n_sets)) < 0.3
    mask[rng.integers(n_genes, size=n_sets), np.arange(n_sets)] = True
    mask = np.hstack([mask, np.ones((n_genes, n_full), dtype=bool)])
    genes = ["NA", "null", *(f"G{i}" for i in range(2, n_genes))]
    gene_sets = [f"SET_{i}, {n_sets}" for i in range(n_sets)] + [
        f"node {i}" for i in range(n_full)
    ]
    torch.manual_seed(0)
    literal = LiteralTOSICA(
        mask,
        len(labels),
        embed_dim=width,
        n_heads=n_heads,
        n_layers=n_layers,
        scrambled_tokens=True,
    ).eval()
    with torch.no_grad():
        for parameter in literal.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        literal.embedding.weight.mul_(literal.embedding.mask)
    np.save(folder / "mask.npy", np.asfortranarray(mask, dtype=np.float64))
    pd.DataFrame(gene_sets).to_csv(folder / "pathway.csv")
    pd.DataFrame(labels, columns=["cell_type"]).to_csv(folder / "label_dictionary.csv")
    tensors = literal.state_dict()
    tensors["feature_embed.fe.weight"] = tensors.pop("embedding.weight").T.contiguous()
    tensors["feature_embed.fe.bias"] = tensors.pop("embedding.bias")
    tensors["feature_embed.fe.mask"] = literal.embedding.mask.T.contiguous()
    torch.save(tensors, folder / "model-9.pth")
    table = tensors["feature_embed.fe.weight"].view(-1, width, n_genes).abs().amax(1)
    table = pd.DataFrame(
        table.numpy(), index=pd.Index(gene_sets, name="0"), columns=genes
    )
    table.to_csv(folder / "gene2token_weights.csv")
    return SimpleNamespace(
        folder=folder, literal=literal, genes=genes, gene_sets=gene_sets, mask=mask
    )


def make_query(project, n_obs=40):
    """Log-normalized cells with the project's genes, normalized over more genes than these."""
    counts = np.random.default_rng(1).poisson(1.5, (n_obs, len(project.genes) + 10))
    x = np.log1p(1e4 * counts / counts.sum(1, keepdims=True))[:, : len(project.genes)]
    adata = AnnData(sp.csr_matrix(x.astype(np.float32)))
    adata.var_names = project.genes
    adata.obs["cell_type"] = pd.Categorical(
        np.array(LABELS)[np.arange(n_obs) % len(LABELS)]
    )
    return adata


def load_legacy(folder, *args, **kwargs):
    """Load a project, and check that it warns once."""
    with pytest.warns(UserWarning, match=MIXED) as caught:
        model = TOSICA.load_legacy(folder, *args, accelerator="cpu", **kwargs)
    assert [
        warning.filename for warning in caught if MIXED in str(warning.message)
    ] == [__file__]
    return model


@pytest.fixture
def project(tmp_path):
    """Six tokens of 24 genes, four labels, width 8, two layers."""
    return write_project(tmp_path / "project")


@pytest.fixture
def reference(project):
    """A reference for the project."""
    return make_query(project)


@torch.no_grad()
def assert_same(model, literal, query, tolerance=1e-5):
    """The model has the results of the network that was written."""
    latent, logits, attention = literal(torch.from_numpy(query.X.toarray()))
    attention_table = model.get_attention(query, unannotated=True)
    assert_allclose(attention_table, attention, rtol=0, atol=tolerance)
    assert_array_equal(
        model.get_attention(query), attention_table.iloc[:, : len(model.gene_sets)]
    )
    assert_allclose(
        model.get_latent_representation(query), latent, rtol=0, atol=tolerance
    )
    expected = np.array(model.labels, dtype=object)[logits.argmax(1)]
    assert_array_equal(model.predict(query), expected)
    assert_allclose(
        model.predict(query, soft=True), logits.softmax(1), rtol=0, atol=tolerance
    )


# --------------------------------------------------------------------------- the original's run


@pytest.fixture(scope="session")
def original(shared):
    """Folder that the original left, query, and results of the original for it."""
    folder = shared / "legacy_project"
    if not folder.is_dir():
        pytest.skip("needs the developers' legacy_project")
    expected = np.load(folder / "expected.npz")
    return folder / "project", ad.read_h5ad(folder / "query.h5ad"), dict(expected)


def assert_as_the_original(model, query, expected):
    latent = model.get_latent_representation(query)
    assert_allclose(latent, expected["latent"], rtol=0, atol=1e-5)
    attention = model.get_attention(query, unannotated=True)
    assert_allclose(attention, expected["attention"], rtol=0, atol=1e-5)
    model.annotate(query)
    assert_array_equal(query.obs["tosica_prediction"], expected["prediction"])
    assert_allclose(
        query.obs["tosica_probability"], expected["probability"], rtol=0, atol=1e-5
    )
    assert_allclose(
        query.obsm["X_tosica"], expected["attention_adata"], rtol=0, atol=1e-5
    )
    assert model.gene_sets == expected["attention_tokens"].tolist()


@pytest.mark.data
def test_results_are_the_originals(original, tmp_path):
    folder, query, expected = original
    model = load_legacy(folder)
    assert_as_the_original(model, query.copy(), expected)
    table = pd.read_csv(folder / "gene2token_weights.csv", index_col=0, dtype={0: str})
    assert_array_equal(model.get_gene_weights(how="max").T, table.astype(np.float32))
    model.save(tmp_path / "model")
    assert_as_the_original(TOSICA.load(tmp_path / "model"), query.copy(), expected)
    order = np.random.default_rng(0).permutation(query.n_vars)
    assert_as_the_original(model, query[:, order].copy(), expected)
    assert_as_the_original(load_legacy(folder, query.var_names), query.copy(), expected)


# --------------------------------------------------------------------------- a project made here


def test_a_loaded_model_describes_itself(project):
    model = load_legacy(project.folder)
    for line in (
        "5 of legacy project (unknown), and 1 unannotated, mixed in each token",
        "read as log-normalized expression",
        "width 8, 4 heads, 2 layers",
    ):
        assert line in repr(model)
    assert (model.is_trained, model.adata, model.history, model.module.training) == (
        True,
        None,
        None,
        False,
    )
    assert "| Cells | not known |" in model.get_model_card(
        tissue="brain", license="mit"
    )


def test_names_of_genes(project):
    path = project.folder / "gene2token_weights.csv"
    table = pd.read_csv(path, index_col=0, na_filter=False)
    # The weights may be those of another epoch.
    (2 * table.astype(float)).to_csv(path)
    assert list(load_legacy(project.folder).get_var_names()) == project.genes
    path.write_text(path.read_text().replace("NA,null,", "null,null,", 1))
    renamed = ["null", "null-1", *project.genes[2:]]
    assert list(load_legacy(project.folder, renamed).get_var_names()) == renamed
    refused(ValueError, "var_names must be the 24 genes .* see 'null'", project.folder)
    path.unlink()
    assert_same(
        load_legacy(project.folder, pd.Index(project.genes)),
        project.literal,
        make_query(project),
    )


@pytest.mark.parametrize(
    ("names", "n_annotated"),
    [
        ([f"node {i}" for i in range(8)], 8),  # random gene sets
        (["node 7", *"abcd", "node 0", "node 1", "node 2"], 5),
        (["node 7", *"abcd", "all genes", "node 0", "all genes too"], 8),
    ],
)
def test_only_full_tokens_at_the_end_are_unannotated(tmp_path, names, n_annotated):
    project = write_project(tmp_path / "project", n_full=3)
    pd.DataFrame(names).to_csv(project.folder / "pathway.csv")
    (project.folder / "gene2token_weights.csv").unlink()
    assert load_legacy(project.folder, project.genes).gene_sets == names[:n_annotated]


def test_last_epoch_is_taken(project):
    tensors = torch.load(project.folder / "model-9.pth", weights_only=True)
    for i, name in enumerate(
        ["model-10.pth", "model-2.pth", "model.pth", "model-x.pth"]
    ):
        tensors["head.bias"] = torch.full((4,), float(i))
        # The older format of torch, too.
        torch.save(tensors, project.folder / name, _use_new_zipfile_serialization=i > 0)
    for weights, expected in [(None, 0), ("model-2.pth", 1), ("model-x.pth", 3)]:
        model = load_legacy(project.folder, weights=weights)
        assert float(model.module.head.bias[0].detach()) == expected


# --------------------------------------------------------------------------- training on


def test_training_on(project, reference, tmp_path, contents, new_keys):
    original = contents(reference)
    model = load_legacy(project.folder, adata=reference, target_sum=5e3)
    new = {
        key.split("/")[1].split(".")[0]
        for key in new_keys(original, contents(reference))
    }
    assert new == {
        "tosica_mask",
        "_scvi_labels",
        "_scvi_batch",
        "_scvi_uuid",
        "_scvi_manager_uuid",
    }
    assert_same(model, project.literal, reference)
    model.train(**QUICK)
    assert "trained (1 epochs)" in repr(model)
    model.save(tmp_path / "model")
    loaded = TOSICA.load(tmp_path / "model", adata=reference, accelerator="cpu")
    assert_array_equal(loaded.get_attention(), model.get_attention())
    loaded.train(**QUICK)
    assert loaded.history["train_loss"].index.tolist() == [0, 1]
    for trained in (model, loaded):
        assert trained.tokens.mixed
        assert trained.modalities[0].scale == ("log1p", 5e3, "matrix", None, None)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            lambda a: setattr(a, "X", np.rint(a.X.toarray())),
            ValueError,
            "adata holds counts values, but the model",
        ),
        (
            lambda a: setattr(a, "var_names", a.var_names[::-1]),
            ValueError,
            "are not the legacy model's genes in its",
        ),
        (
            lambda a: pp.build_mask(a, {"half": a.var_names[:12].tolist()}),
            ValueError,
            "do not hold the legacy mask",
        ),
        (
            lambda a: a.uns.update(tosica_mask={"gene_sets": []}),
            ValueError,
            "legacy mask: delete both",
        ),
        (
            lambda a: a.obs.replace({"cell_type": {"NK": "new"}}, inplace=True),
            ValueError,
            "does not know: 'new'",
        ),
        (
            lambda a: a.obs.pop("cell_type"),
            KeyError,
            "'cell_type' is no column of adata.obs, nor any other",
        ),
    ],
)
def test_reference_that_does_not_fit(
    project, reference, unchanged, change, error, sentence
):
    reference.obs["cell_type"] = reference.obs["cell_type"].astype(str)
    change(reference)
    with unchanged(reference), pytest.raises(error, match=sentence):
        TOSICA.load_legacy(project.folder, adata=reference)


# --------------------------------------------------------------------------- folders that are wrong

GENE_WEIGHTS, WEIGHTS = "gene2token_weights.csv", "model-9.pth"
DAMAGED, CONTRADICTS = (
    "is damaged, or holds something else",
    "the folder is not as the original code leaves it",
)


def refused(error, sentence, folder, *args, **kwargs):
    """An error of one sentence, without a warning or a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=sentence) as caught:
            TOSICA.load_legacy(folder, *args, **kwargs)
    assert str(caught.value).endswith(".")
    assert ". " not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["mask.npy", "pathway.csv", "label_dictionary.csv", WEIGHTS, GENE_WEIGHTS]
)
def test_missing_file(project, name):
    (project.folder / name).unlink()
    refused(
        FileNotFoundError,
        f"holds no {'model' if name == WEIGHTS else name}",
        project.folder,
    )


def test_arguments_that_do_not_fit(project):
    folder, genes = project.folder, project.genes
    refused(FileNotFoundError, "nowhere", folder / "nowhere")
    refused(FileNotFoundError, r"holds no model-3\.pth", folder, weights="model-3.pth")
    refused(
        ValueError, r"n_heads=3 does not divide 8: pass the heads", folder, n_heads=3
    )
    for names in (
        genes[:-1],
        [genes[1], genes[0], *genes[2:]],
        ["NA", *genes[:-1]],
        "NA",
        [1] * 24,
    ):
        refused(
            ValueError,
            "var_names must be the 24 genes that the model was trained on, in their",
            folder,
            names,
        )


def table(change):
    def write(path):
        change(pd.read_csv(path, index_col=0, na_filter=False)).to_csv(path)

    return write


def mask(change):
    return lambda path: np.save(path, change(np.load(path)))


def tensors(**changes):
    """Change tensors, whose names have __ for dots; ``None`` leaves one out."""

    def write(path):
        tensors_of_file = torch.load(path, weights_only=True)
        tensors_of_file |= {
            (name := key.replace("__", ".")): change(tensors_of_file.get(name))
            for key, change in changes.items()
        }
        torch.save(
            {
                name: value
                for name, value in tensors_of_file.items()
                if value is not None
            },
            path,
        )

    return write


def last(value):
    """Change the last number of a tensor."""
    return lambda t: torch.cat([t.flatten()[:-1], torch.tensor([value])]).view(t.shape)


def flip_a_bit(path):
    """In the embedding's bias; torch does not look at the checksums of a file."""
    tensor = (
        torch.load(path, weights_only=True)["feature_embed.fe.bias"].numpy().tobytes()
    )
    content = bytearray(path.read_bytes())
    content[content.index(tensor) + 2] ^= 1
    path.write_bytes(content)


WRONG = {
    "few gene sets": (
        "pathway.csv",
        lambda p: p.write_text(",0\n0,a\n1,b\n"),
        CONTRADICTS,
    ),
    "a gene set twice": (
        "pathway.csv",
        table(lambda t: t.replace("SET_1, 5", "SET_0, 5")),
        CONTRADICTS,
    ),
    "a single label": ("label_dictionary.csv", table(lambda t: t[:1]), CONTRADICTS),
    "Unknown": (
        "label_dictionary.csv",
        table(lambda t: t.replace("NK", "Unknown")),
        CONTRADICTS,
    ),
    "other genes": (
        GENE_WEIGHTS,
        table(lambda t: t[t.columns[::-1]].set_axis(t.columns, axis=1)),
        CONTRADICTS,
    ),
    "other mask": ("mask.npy", mask(lambda m: m[:, [1, 0, *range(2, 6)]]), CONTRADICTS),
    "a set without genes": (
        "mask.npy",
        mask(lambda m: m * (np.arange(6) > 0)),
        CONTRADICTS,
    ),
    "a huge mask": (
        "mask.npy",
        lambda p: p.write_bytes(p.read_bytes().replace(b"(24, 6)", b"(10**17,)")),
        DAMAGED,
    ),
    "NaN": (WEIGHTS, tensors(head__bias=last(np.nan)), "holds NaN or infinity"),
    "another tensor": (
        WEIGHTS,
        tensors(pos_embed=lambda t: torch.zeros(1)),
        "pos_embed",
    ),
    "a view": (
        WEIGHTS,
        tensors(head__bias=lambda t: torch.ones(1).expand(4)),
        CONTRADICTS,
    ),
    "weights cut": (WEIGHTS, lambda p: p.write_bytes(p.read_bytes()[:-5]), DAMAGED),
    "a flipped bit": (WEIGHTS, flip_a_bit, DAMAGED),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_wrong(project, name):
    file, change, sentence = WRONG[name]
    change(project.folder / file)
    refused(
        ValueError, sentence, project.folder, project.genes if "other" in name else None
    )


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


@pytest.mark.parametrize("form", ["archive", "older format", "inside", "mask"])
def test_no_code_is_run(project, tmp_path, form):
    marker = tmp_path / "marker"
    path, trap = (
        project.folder / ("mask.npy" if form == "mask" else WEIGHTS),
        Trap(marker),
    )
    if form == "mask":
        np.save(path, np.array([trap], dtype=object), allow_pickle=True)
    else:
        payload = {"head.bias": trap} if form == "inside" else trap
        torch.save(payload, path, _use_new_zipfile_serialization=form != "older format")
    refused(ValueError, "was not opened", project.folder)
    assert not marker.exists()
    # The trap works: the original's way of reading springs it.
    _ = (
        np.load(path, allow_pickle=True)
        if form == "mask"
        else torch.load(path, weights_only=False)
    )
    assert marker.exists()
