"""The methods of the accuracy benchmark, each as its users call it.

A method is a function of a reference, a query and a seed that gives a probability for each of the
query's cells and each label. All see the same genes, log-normalised in ``X``, or the counts behind
them in ``layers["counts"]``.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import scvi
import torch
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import tosica
from tosica.module._mixed_embedding import MixedEmbedding
from tosica.module._module import _hide

from ._accuracy_tasks import COUNTS, LABEL

# The yardstick is part of the tests, because they hold the engine to its numbers.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from _literal import LiteralTOSICA

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from sklearn.base import ClassifierMixin

    Method = Callable[[AnnData, AnnData, int], pd.DataFrame]

# Of the label sets that tosica gives beside probabilities.
COVERAGES = (0.8, 0.9, 0.95)


def run_tosica(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Nothing but defaults."""
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu")
    found = model.predict(query, soft=True)
    # With a handful of held-out cells there is nothing to promise a coverage by.
    with contextlib.suppress(ValueError):
        found.attrs["sets"] = {c: model.predict_set(query, coverage=c) for c in COVERAGES}
    return found


def run_celltypist(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Scaled logistic regression, one label against the rest (Domínguez Conde et al., 2022)."""
    import celltypist

    # Its check wants the counts of all genes of the organism, its feature selection is off.
    model = celltypist.train(reference, labels=LABEL, check_expression=False, n_jobs=1)
    found = celltypist.annotate(query, model=model)
    return found.probability_matrix


def run_scanvi(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """A scVI model of both, then scANVI, which sees the query (Xu et al., 2021)."""
    both = ad.concat({"reference": reference, "query": query}, label="origin")
    both.obs["seen"] = np.where(both.obs["origin"] == "query", "unlabelled", both.obs[LABEL])
    scvi.settings.seed = seed
    options = {"accelerator": "cpu", "enable_progress_bar": False}
    scvi.model.SCVI.setup_anndata(both, layer=COUNTS, batch_key="origin")
    first = scvi.model.SCVI(both, n_layers=2, n_latent=30, gene_likelihood="nb")
    first.train(**options)
    model = scvi.model.SCANVI.from_scvi_model(first, "unlabelled", labels_key="seen")
    model.train(max_epochs=20, n_samples_per_label=100, **options)
    return model.predict(both[both.obs["origin"] == "query"].copy(), soft=True)


def run_logistic(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Logistic regression."""
    return _classified(LogisticRegression(max_iter=1000), reference, query)


def run_svm(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Linear support vectors, with probabilities by Platt's sigmoid over folds."""
    fewest = int(reference.obs[LABEL].value_counts().min())
    svm = LinearSVC(random_state=seed)
    platt = CalibratedClassifierCV(svm, cv=max(2, min(5, fewest)), ensemble=False)
    return _classified(platt, reference, query)


def run_knn(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """15 neighbours on 50 principal components."""
    n_components = min(50, reference.n_obs - 1, reference.n_vars - 1)
    pipeline = make_pipeline(
        PCA(n_components, random_state=seed), KNeighborsClassifier(min(15, reference.n_obs))
    )
    return _classified(pipeline, reference, query, dense=True)


def _classified(
    classifier: ClassifierMixin, reference: AnnData, query: AnnData, *, dense: bool = False
) -> pd.DataFrame:
    train, test = (x.X.toarray() if dense else x.X for x in (reference, query))
    classifier.fit(train, reference.obs[LABEL].astype(str).to_numpy())
    return pd.DataFrame(
        classifier.predict_proba(test), index=query.obs_names, columns=classifier.classes_
    )


def run_literal(reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """The published code's network and defaults.

    Labels oversampled to the most frequent one, batches of 8, ten epochs of SGD with a cosine, and
    its dropouts. To make this benchmark feasible its dense embedding is replaced by the sparse one
    with the same outputs and gradients, dropout draws integers of 16 bits, and the last layer
    computes no token but the class token, which is all that is read.
    """
    tosica.pp.build_mask(reference)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    labels = reference.obs[LABEL].cat.categories
    codes = reference.obs[LABEL].cat.codes.to_numpy()
    cells = [np.flatnonzero(codes == code) for code in range(len(labels))]
    most = max(map(len, cells))
    drawn = np.concatenate([np.r_[c, rng.choice(c, most - len(c))] for c in cells])
    x = torch.from_numpy(reference.X.toarray()[drawn])
    y = torch.from_numpy(codes[drawn].astype(np.int64))
    mask = reference.varm["tosica_mask"].tocsc()
    mask.sort_indices()
    model = LiteralTOSICA(
        np.zeros((1, 1)), len(labels), dropout=0.5, attention_dropout=0.5, drop_path=0.5
    )
    embedding = MixedEmbedding(mask.indptr, mask.indices, reference.n_vars, 48)
    # Where a dense linear layer starts.
    bound = reference.n_vars**-0.5
    for parameter in embedding.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)
    model.embedding = embedding
    for block in model.blocks:
        block.attn.attention_dropout = block.attn.dropout = block.mlp.dropout = _Dropout()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-5)
    epochs = 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: (1 + np.cos(epoch * np.pi / epochs)) / 2 * 0.99 + 0.01
    )
    for _ in range(epochs):
        model.train()
        for step in torch.randperm(len(x)).split(8):
            logits = _class_token_logits(model, x[step])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[step]).backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        scores = [
            _class_token_logits(model, part)
            for part in torch.from_numpy(query.X.toarray()).split(64)
        ]
    found = softmax(torch.cat(scores).numpy(), axis=1)
    return pd.DataFrame(found, index=query.obs_names, columns=labels)


class _Dropout(torch.nn.Module):
    """Dropout of one half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _hide(x, 0.5) if self.training else x


def _class_token_logits(model: LiteralTOSICA, x: torch.Tensor) -> torch.Tensor:
    """What ``model(x)`` gives as logits."""
    t = torch.cat([model.cls_token.expand(len(x), -1, -1), model.embedding(x)], dim=1)
    *blocks, last = model.blocks
    for block in blocks:
        t, _ = block(t)
    attention = last.attn
    by_head = attention.qkv(last.norm1(t)).unflatten(-1, (3, attention.n_heads, -1))
    query, key, value = (part.transpose(1, 2) for part in by_head.unbind(2))
    weights = (query[:, :, :1] @ key.transpose(-1, -2) * attention.head_dim**-0.5).softmax(-1)
    mixed = (attention.attention_dropout(weights) @ value).transpose(1, 2).flatten(-2)
    first = t[:, :1] + last.drop_path(attention.dropout(attention.proj(mixed)))
    first = first + last.drop_path(last.mlp(last.norm2(first)))
    return model.head(model.norm(first)[:, 0])


METHODS: dict[str, tuple[str, Method]] = {
    "tosica": ("**tosica**", run_tosica),
    "celltypist": ("CellTypist", run_celltypist),
    "scanvi": ("scANVI (sees the query)", run_scanvi),
    "logistic": ("logistic regression", run_logistic),
    "svm": ("linear SVM", run_svm),
    "knn": ("15 neighbours on PCA", run_knn),
    "literal": ("the original, its defaults", run_literal),
}


def quietly(method: Method, reference: AnnData, query: AnnData, seed: int) -> pd.DataFrame:
    """Run a method on copies, without the warnings that its own libraries raise."""
    with warnings.catch_warnings(action="ignore"):
        # Set anew each time: scanpy's tools leave torch with as many threads as there are cores.
        torch.set_num_threads(1)
        return method(reference.copy(), query.copy(), seed)
