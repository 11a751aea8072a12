"""A model's folder: whole, without the reference, and without any code that loading would run."""

import pathlib
import pickle
import re
from importlib.metadata import version

import anndata
import numpy as np
import pytest
import scanpy as sc
import torch
from _cells import untrained
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal
from scvi.model.base import BaseModelClass

from tosica import TOSICA, pp

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)


@pytest.fixture
def folder(toy_model, tmp_path):
    toy_model.save(tmp_path / "model")
    return tmp_path / "model"


# --------------------------------------------------------------------------- there and back


def test_identical_predictions(toy_model, toy_query, folder):
    model = TOSICA.load(folder, accelerator="cpu")
    assert_frame_equal(
        model.predict(toy_query, soft=True), toy_model.predict(toy_query, soft=True)
    )
    assert_frame_equal(
        model.get_attention(toy_query), toy_model.get_attention(toy_query)
    )
    actual, expected = (
        fitted.get_latent_representation(toy_query) for fitted in (model, toy_model)
    )
    assert_array_equal(actual, expected)
    for how in ("mean", "max"):
        assert_frame_equal(model.get_gene_weights(how), toy_model.get_gene_weights(how))
    model.annotate(toy_query)
    assert toy_query.uns["tosica_prediction_colors"] == [
        "#aa0000",
        "#00bb00",
        "#0000cc",
    ]


def test_everything_that_describes_the_model_comes_back(toy_model, folder):
    model = TOSICA.load(folder)
    assert repr(model) == repr(toy_model)
    assert model.fingerprint == toy_model.fingerprint
    assert model.labels == toy_model.labels
    assert model.gene_sets == toy_model.gene_sets
    assert model.is_trained
    assert not model.module.training
    assert model.adata is None
    assert list(model.get_var_names()) == list(toy_model.get_var_names())
    assert model.module.temperature == toy_model.module.temperature != 2
    for name in ("train_indices", "validation_indices", "test_indices"):
        assert_array_equal(getattr(model, name), getattr(toy_model, name))
    assert set(model.history) == set(toy_model.history)
    for name, table in toy_model.history.items():
        assert_frame_equal(
            model.history[name].astype(float),
            table.astype(float),
            check_index_type=False,
        )


def test_untrained_model(toy, tmp_path, toy_query):
    untrained(toy).save(tmp_path / "model")
    model = TOSICA.load(tmp_path / "model")
    assert not model.is_trained
    assert model.history is None
    with pytest.raises(RuntimeError, match="not trained"):
        model.predict(toy_query)


def test_with_the_reference(toy, train, tmp_path):
    model = train(toy, max_epochs=1)
    model.save(tmp_path / "model", save_anndata=True)
    reference = anndata.read_h5ad(tmp_path / "model" / "adata.h5ad")
    assert TOSICA.load(tmp_path / "model", adata=reference).adata is reference
    with pytest.raises(
        ValueError, match="save_anndata=True was given, but the model has no"
    ):
        TOSICA.load(tmp_path / "model").save(tmp_path / "other", save_anndata=True)
    assert not (tmp_path / "other").exists()


# --------------------------------------------------------------------------- folders that are there


def test_a_file_is_no_folder(network_model, tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="is a file: choose another folder"):
        network_model.save(path, overwrite=True)
    assert path.read_text() == "mine"


def test_a_folder_that_exists_and_a_prefix(network_model, toy_model, folder):
    content = (folder / "model.pt").read_bytes()
    with pytest.raises(
        FileExistsError, match="exists: choose another folder, or pass overwrite="
    ):
        network_model.save(folder)
    assert (folder / "model.pt").read_bytes() == content
    network_model.save(folder, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
    toy_model.save(folder, prefix="first_", overwrite=True)
    assert TOSICA.load(folder).fingerprint == network_model.fingerprint
    assert TOSICA.load(folder, prefix="first_").fingerprint == toy_model.fingerprint
    for nowhere in (folder / "nowhere", folder.parent):
        with pytest.raises(FileNotFoundError, match=r"holds no model\.pt"):
            TOSICA.load(nowhere)


# --------------------------------------------------------------------------- no code is run


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize(
    "where", ["attribute", "registry", "whole", "old format", "plain pickle"]
)
@pytest.mark.parametrize(
    "call", [TOSICA.load, TOSICA.load_registry, TOSICA.view_setup_args]
)
def test_loading_runs_no_code(folder, tmp_path, where, call):
    path, marker = folder / "model.pt", tmp_path / "marker"
    contents = torch.load(path, weights_only=True)
    if where == "attribute":
        contents["attr_dict"]["run_name_"] = Trap(marker)
    elif where == "registry":
        contents["attr_dict"]["registry_"]["setup_args"] = {"layer": Trap(marker)}
    else:
        contents = {"model_state_dict": {}, "var_names": [], "attr_dict": Trap(marker)}
    if where == "plain pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=where != "old format")

    with pytest.raises(ValueError, match="nothing in it was executed"):
        call(folder)
    assert not marker.exists()

    # The trap works: scvi-tools' way of reading springs it.
    if where != "plain pickle":
        torch.load(path, weights_only=False)
        assert marker.exists()


# --------------------------------------------------------------------------- scvi-tools' helpers


def test_scvi_tools_reads_the_registry(toy_model, folder, capsys):
    for registry in (
        BaseModelClass.load_registry(str(folder)),
        TOSICA.load_registry(folder),
    ):
        assert registry["model_name"] == "TOSICA"
        assert registry["setup_method_name"] == "setup_anndata"
        assert registry["setup_args"] == toy_model.registry["setup_args"]
        assert set(registry["field_registries"]) == {"X", "labels", "batch", "mask"}
        mapping = registry["field_registries"]["labels"]["state_registry"][
            "categorical_mapping"
        ]
        assert list(mapping) == ["a", "b", "c"]
    for cls in (TOSICA, BaseModelClass):
        cls.view_setup_args(str(folder))
        printed = capsys.readouterr().out
        assert "Setup via `TOSICA.setup_anndata` with arguments:" in printed
        assert "'labels_key': 'kind'" in printed


def test_hub(toy, folder):
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("requests")
    from huggingface_hub import ModelCard
    from scvi.hub import HubMetadata, HubModel

    metadata = HubMetadata.from_dir(
        str(folder), anndata_version=version("anndata"), model_parent_module="tosica"
    )
    assert metadata.model_cls_name == "TOSICA"
    card = ModelCard("---\nlicense: cc-by-4.0\n---\n\nA model of made-up cells.\n")
    HubModel(str(folder), metadata=metadata, model_card=card).save()
    hub = HubModel(str(folder))
    hub.load_model(adata=toy)
    assert isinstance(hub.model, TOSICA)
    assert hub.model.labels == ["a", "b", "c"]


# --------------------------------------------------------------------------- training on


def test_without_a_reference_there_is_nothing_to_train_on(folder, toy_query):
    model = TOSICA.load(folder)
    with pytest.raises(
        ValueError,
        match=r"no reference to train on: pass one to TOSICA\.load\(folder, ad",
    ):
        model.train(max_epochs=1)
    with pytest.raises(
        ValueError, match="loaded without a reference: pass the query as adata"
    ):
        model.predict()
    assert model.predict(toy_query).shape == (60,)


def test_training_on_with_the_reference(toy, toy_model, folder, fast_plan):
    model = TOSICA.load(folder, adata=toy, accelerator="cpu")
    assert model.adata is toy
    assert_array_equal(model.predict(), toy_model.predict())
    model.train(
        max_epochs=2,
        accelerator="cpu",
        batch_size=16,
        plan_kwargs=fast_plan,
    )
    assert model.fingerprint != toy_model.fingerprint
    table = model.history["train_loss"]
    assert table.index.tolist() == list(range(17))
    # Not from chance, which is log 3 = 1.1.
    assert float(table.iloc[15, 0]) < 0.9
    assert (model.predict() == toy.obs["kind"].astype(str)).mean() > 0.9


def test_other_reference_with_fewer_labels_new_batches_or_unlabeled_cells(
    toy, train, folder, tmp_path
):
    reference = toy.copy()
    reference.obs["kind"] = reference.obs["kind"].cat.add_categories("?")
    reference.obs.loc[reference.obs_names[:1], "kind"] = "?"
    train(
        reference, max_epochs=1, setup={"batch_key": "donor", "unlabeled_category": "?"}
    ).save(tmp_path / "batches")
    two_labels = toy[toy.obs["kind"] != "a"].copy()
    two_labels.obs["kind"] = two_labels.obs["kind"].cat.remove_unused_categories()
    two_labels.obs["donor"] = np.array(["d2", "new"])[np.arange(60) // 2 % 2]
    model = TOSICA.load(tmp_path / "batches", adata=two_labels)
    assert model.labels == ["a", "b", "c"]
    # Codes are the model's, not those that the column alone would give.
    assert_array_equal(
        two_labels.obs["_scvi_labels"],
        two_labels.obs["kind"].map({"b": 1, "c": 2}).astype(int),
    )
    assert model.get_attention(two_labels).shape == (60, 5)
    # Cells without a label are not trained on.
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories("?")
    toy.obs.loc[toy.obs_names[:12], "kind"] = "?"
    model = TOSICA.load(tmp_path / "batches", adata=toy)
    assert model.labels == ["a", "b", "c"]
    model.train(max_epochs=1, accelerator="cpu")
    assert_array_equal(model.test_indices, np.arange(12))


def test_other_reference_with_unlabeled_cells_for_a_model_of_labeled_ones(toy, folder):
    kind = toy.obs["kind"].astype(str).to_numpy(dtype=object)
    kind[:12] = "unassigned"
    toy.obs["kind"] = kind
    with pytest.warns(UserWarning, match="'unassigned'"):
        model = TOSICA.load(folder, adata=toy)
    assert model.labels == ["a", "b", "c"]
    assert set(toy.obs["_scvi_labels"][:12]) == {3}
    model.train(max_epochs=1, accelerator="cpu")
    assert_array_equal(model.test_indices, np.arange(12))


def _same_names_other_genes(adata):
    mask = adata.varm["tosica_mask"].tolil()
    mask[20, 0] = True
    adata.varm["tosica_mask"] = mask.tocsr()


def _new_label(adata):
    adata.obs["kind"] = adata.obs["kind"].cat.rename_categories({"b": "new"})


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            lambda a: a[:, :-1].copy(),
            ValueError,
            "adata's var_names are not the model's genes in the model's",
        ),
        (
            lambda a: a[:, ::-1].copy(),
            ValueError,
            "take adata[:, model.get_var_names()], or pass no adata",
        ),
        (
            lambda a: pp.build_mask(a, {"alpha": a.var_names[:9]}),
            ValueError,
            "with (5 tokens of dict): build it from",
        ),
        (
            _same_names_other_genes,
            ValueError,
            "is not the mask that the model was trained with",
        ),
        (_new_label, ValueError, "has labels that the model does not know: 'new'."),
        (
            lambda a: (sc.pp.normalize_total(a), sc.pp.log1p(a)),
            ValueError,
            "adata holds log1p values, but the model was trained on cou",
        ),
    ],
)
def test_reference_that_does_not_fit(toy, folder, unchanged, change, error, sentence):
    changed = change(toy)
    reference = changed if isinstance(changed, anndata.AnnData) else toy
    with unchanged(reference), pytest.raises(error, match=re.escape(sentence)):
        TOSICA.load(folder, adata=reference)


# --------------------------------------------------------------------------- plain values


def test_what_cannot_be_plain_is_refused(toy_model, tmp_path, monkeypatch):
    monkeypatch.setattr(toy_model, "history_", object())
    with pytest.raises(TypeError, match=r"A saved model cannot hold a object\."):
        toy_model.save(tmp_path / "model")


# --------------------------------------------------------------------------- damage


def refuses(folder, **options):
    with pytest.raises(ValueError, match=r"model\.pt' is damaged"):
        TOSICA.load(folder, accelerator="cpu", **options)


def edit(folder, change):
    """Change what a model's file holds, and write it as torch does."""
    contents = torch.load(folder / "model.pt", weights_only=True)
    change(contents)
    torch.save(contents, folder / "model.pt")


def test_bytes_changed_anywhere(folder, toy_model):
    """Either a change is noticed, or it is where nothing is."""
    path = folder / "model.pt"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(40):
        changed = bytearray(content)
        for at in rng.integers(len(content), size=rng.integers(1, 6)):
            changed[at] ^= rng.integers(1, 256)
        path.write_bytes(changed)
        try:
            model = TOSICA.load(folder, accelerator="cpu")
        except ValueError:
            noticed += 1
        else:
            assert model.fingerprint == toy_model.fingerprint
    assert noticed > 25


def test_files_of_other_kinds(folder):
    model_file, noise = (
        (folder / "model.pt").read_bytes(),
        np.random.default_rng(0).bytes(2000),
    )
    starts = [b"", b"PK\x03\x04", b"\x80\x02", b"\x89HDF\r\n\x1a\n", b"<html>"]
    for content in (
        *starts,
        *(beginning + noise for beginning in starts),
        model_file[: len(model_file) // 2],
    ):
        (folder / "model.pt").write_bytes(content)
        refuses(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(history_=torch.zeros(1).expand(10**5, 10**6)),
        lambda a: a.update(history_=torch.zeros(3, 16).to_sparse()),
    ],
)
def test_tensors_that_are_larger_than_the_file(folder, toy, contents, change):
    edit(folder, lambda contents_of_file: change(contents_of_file["attr_dict"]))
    original = contents(toy)
    refuses(folder, adata=toy)
    assert contents(toy) == original


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(ontology_term_ids_={"a": 5}),
        lambda a: a["training_"].update(another=5),
        lambda a: a.pop("training_"),
        lambda a: a["init_params_"]["non_kwargs"].update(embed_dim=32),
        lambda a: a["registry_"].update(model_name="SCANVI"),
    ],
)
def test_a_whole_file_with_other_contents(folder, change):
    edit(folder, lambda contents_of_file: change(contents_of_file["attr_dict"]))
    with pytest.raises(
        ValueError,
        match=r"holds no model of this version|terms of the labels|holds a SCANVI model",
    ):
        TOSICA.load(folder)


def test_a_model_that_diverged_is_not_saved(toy, train, folder):
    model = train(toy, max_epochs=1, refit=False)
    with torch.no_grad():
        model.module.head.bias[0] = np.nan
    content = (folder / "model.pt").read_bytes()
    with pytest.raises(ValueError, match=r"not finite \(head\.bias\)"):
        model.save(folder, overwrite=True)
    assert (folder / "model.pt").read_bytes() == content


# --------------------------------------------------------------------------- folders


@pytest.mark.parametrize("name", ["model.pt", "adata.h5ad"])
def test_a_folder_in_the_place_of_a_file(toy_model, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match="could not be written"):
        toy_model.save(tmp_path, overwrite=True, save_anndata=True)
    assert not (tmp_path / "model.pt").is_file()


def test_a_backed_reference(toy, train, tmp_path):
    toy.write_h5ad(tmp_path / "reference.h5ad")
    backed = anndata.read_h5ad(tmp_path / "reference.h5ad", backed="r")
    model = train(backed, max_epochs=1, refit=False)
    expected = model.predict()
    for _ in range(2):
        model.save(tmp_path / "model", overwrite=True, save_anndata=True)
        assert backed.filename == tmp_path / "reference.h5ad"
        assert_array_equal(model.predict(), expected)
    reference = anndata.read_h5ad(tmp_path / "model" / "adata.h5ad")
    assert_array_equal(TOSICA.load(tmp_path / "model").predict(reference), expected)


def test_the_fingerprint_tells_names_apart(toy, train):
    plain = train(toy.copy())
    renamed = toy.copy()
    renamed.obs["kind"] = renamed.obs["kind"].cat.rename_categories({"a": "A"})
    of_renamed = train(renamed)
    for name, tensor in plain.module.state_dict().items():
        assert torch.equal(tensor, of_renamed.module.state_dict()[name])
    assert plain.fingerprint != of_renamed.fingerprint


def test_a_full_disk(toy_model, folder, monkeypatch):
    content = (folder / "model.pt").read_bytes()

    def full(*args, **kwargs):
        raise RuntimeError(
            "[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"
        )

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        OSError, match=r"model\.pt' could not be written \(.*\): is the disk full"
    ):
        toy_model.save(folder, overwrite=True)
    assert (folder / "model.pt").read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
