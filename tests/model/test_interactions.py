"""Labels that are products of gene sets, which the network learns and no line can."""

import numpy as np
import pandas as pd
import pytest
import scvi
from anndata import AnnData

import tosica

N_PROGRAMS = 6
N_GENES = 8
PROGRAMS = {
    f"program {i}": [f"G{N_GENES * i + j}" for j in range(N_GENES)]
    for i in range(N_PROGRAMS)
}


def made_up(n_cells, is_product, seed=0):
    """Cells whose label says whether one of two programs is active, or whether the first is."""
    rng = np.random.default_rng(seed)
    active = rng.random((n_cells, N_PROGRAMS)) < 0.5
    label = active[:, 0] ^ active[:, 1] if is_product else active[:, 0]
    rate = 0.5 * (1 + 4 * np.repeat(active, N_GENES, axis=1))
    adata = AnnData(rng.poisson(rate).astype(np.float32))
    adata.var_names = [f"G{i}" for i in range(adata.n_vars)]
    adata.obs["cell_type"] = pd.Categorical(np.where(label, "yes", "no"))
    return adata


def model_of(reference):
    tosica.pp.build_mask(reference, PROGRAMS)
    tosica.TOSICA.setup_anndata(reference, labels_key="cell_type")
    scvi.settings.seed = 0
    return tosica.TOSICA(reference)


def messages(caplog):
    return [record.message for record in caplog.records if "together" in record.message]


def test_a_product_is_named_and_trained_longer(caplog):
    model = model_of(made_up(600, is_product=True))
    model.train(limit_train_batches=1)
    (message,) = messages(caplog)
    assert "program 0 and program 1 tell" in message
    assert len(model.history_["train_loss"]) > 50


def test_a_line_is_not(caplog):
    model = model_of(made_up(600, is_product=False))
    model.train(limit_train_batches=1)
    assert not messages(caplog)
    assert len(model.history_["train_loss"]) < 10


@pytest.mark.parametrize(
    "arguments", [{"max_epochs": 2}, {"plan_kwargs": {"gene_dropout": 0.1}}]
)
def test_chosen_settings_stay(arguments, caplog):
    model = model_of(made_up(600, is_product=True))
    model.train(limit_train_batches=1, **arguments)
    assert not messages(caplog)


@pytest.mark.slow
def test_the_network_learns_a_product():
    query = made_up(600, is_product=True, seed=1)
    model = model_of(made_up(600, is_product=True))
    model.train()
    assert (model.predict(query) == query.obs["cell_type"]).mean() > 0.8
