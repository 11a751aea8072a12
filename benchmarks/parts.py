"""Measure the parts of the model: the network, the linear branch, and their sum, from the same trainings.

``python -m benchmarks.parts FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``parts.json`` and its page. An interrupted run
continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scvi
import torch
from scipy.sparse import csr_matrix
from sklearn.model_selection import train_test_split

import tosica
from benchmarks._accuracy_tasks import LABEL, TASKS, UNSEEN, Split, Task, prepared
from benchmarks._results import table, version_lines, versions, write
from benchmarks._scores import METRICS, scores
from tosica._stats import fit_temperature
from tosica.model import _phases

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.model._state import TrainingState

PARTS = {"sum": "sum", "branch": "linear branch", "network": "network"}
# Of the made-up cells: programs, genes of each, lineages, and cells of the reference and of the query.
N_PROGRAMS, N_GENES, LINEAGES = 30, 10, (0.4, 0.35, 0.25)
N_REFERENCE, N_QUERY = 10_000, 3_000


# --------------------------------------------------------------------------- the parts of a model


@torch.inference_mode()
def keep_parts(state: TrainingState) -> None:
    """Keep the branch as it is by itself, and the scores of held-out cells by both parts."""
    model, linear = state.model, state.linear
    chosen, linear.weight = linear.weight, 1.0
    linear.to_module()
    model.branch, model.adjustment = deepcopy(model.module.linear), linear.adjustment
    if state.data.n_val:
        held_out = (
            model.module._get_inference_input(batch)["x"]
            for batch in state.data.val_dataloader(whole=True)
        )
        model.held_out = [
            torch.cat(of_part)
            for of_part in zip(*map(model.score_parts, held_out), strict=True)
        ]
        model.truth, model.chosen = state.data.codes[state.data.val_idx], chosen
    linear.weight = chosen
    linear.to_module()


class Parts(tosica.TOSICA):
    """A model whose parts can label by themselves."""

    # The phases themselves, so that one that is renamed is missed at once.
    _training_phases = tuple(
        each
        for phase in _phases.PHASES
        for each in (
            (phase, keep_parts)
            if phase in (_phases.calibrate, _phases.refit)
            else (phase,)
        )
    )

    def score_parts(
        self, x: Tensor, measured: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits of the network, whose loss adjusts for rare labels, and of the branch with its own adjustment."""
        return self.module.network_logits(self.module.clip(x)), self.branch(
            x, measured
        ) - self.adjustment

    @torch.inference_mode()
    def label(self, query: ad.AnnData) -> dict[str, pd.DataFrame]:
        """Probabilities by each part, which have temperatures of their own."""
        blocks = [
            self.score_parts(batch.x, batch.measured)
            for batch in self.iter_batches(query)
        ]
        found = {"sum": self.predict(query, soft=True)}
        for name, of_part, held_out in zip(
            ("network", "branch"), zip(*blocks, strict=True), self.held_out, strict=True
        ):
            temperature = fit_temperature(held_out, self.truth, expected=1.0)
            probability = torch.softmax(torch.cat(of_part) / temperature, 1).numpy()
            found[name] = pd.DataFrame(
                probability, query.obs_names, found["sum"].columns
            )
        return found


# --------------------------------------------------------------------------- tasks


def interactions(_: Path, seed: int) -> list[Split]:
    """Made-up cells whose labels no line separates.

    A cell has one of three lineages, each with a program of genes. Within a lineage, the label says
    whether one or both (or none) of two programs of the lineage are active, so that neither tells the
    label by itself. All other programs are active at random in 30 % of the cells.
    """
    rng = np.random.default_rng(seed)
    n_cells = N_REFERENCE + N_QUERY
    lineage, cells = rng.choice(len(LINEAGES), n_cells, p=LINEAGES), np.arange(n_cells)
    active = rng.random((n_cells, N_PROGRAMS)) < 0.3
    active[:, : len(LINEAGES)] = lineage[:, None] == np.arange(len(LINEAGES))
    first, one = rng.random((2, n_cells)) < 0.5
    active[cells, 3 + 2 * lineage], active[cells, 4 + 2 * lineage] = first, first ^ one
    rate = rng.gamma(1, 0.3, N_PROGRAMS * N_GENES) * (
        1 + 4 * np.repeat(active, N_GENES, 1)
    )
    counts = rng.poisson(rate * rng.lognormal(0, 0.35, (n_cells, 1)))
    adata = ad.AnnData(csr_matrix(counts.astype(np.float32)))
    adata.var_names = [f"G{i}" for i in range(adata.n_vars)]
    adata.obs["kind"] = [
        f"lineage {i}, {'one' if j else 'both or none'}"
        for i, j in zip(lineage, one, strict=True)
    ]
    train, test = train_test_split(
        cells, test_size=N_QUERY, stratify=adata.obs["kind"], random_state=seed
    )
    made = prepared(adata, "kind")
    return [Split(made[train].copy(), made[test].copy())]


ALL = (
    TASKS
    | UNSEEN
    | {
        "interactions": Task("made up, products of programs", True, interactions),
        "interactions whole": Task(
            "the same, nothing left out in training", True, interactions
        ),
    }
)
# Settings of training that are not the defaults.
TRAINING: dict[str, dict[str, Any]] = {
    "interactions whole": {
        "max_epochs": 16,
        "plan_kwargs": {
            "gene_dropout": 0,
            "token_dropout": 0,
            "label_smoothing": 0,
            "weight_decay": 0,
        },
    }
}
PROGRAMS = {
    f"program {i}": [f"G{N_GENES * i + j}" for j in range(N_GENES)]
    for i in range(N_PROGRAMS)
}


def one_run(task: str, data: Path, seed: int) -> list[dict[str, Any]]:
    """Train on the splits of a task, and score the labels of each part."""
    found: dict[str, list[tuple[np.ndarray, ...]]] = {part: [] for part in PARTS}
    chosen = []
    for reference, query in ALL[task].splits(data, seed):
        tosica.pp.build_mask(
            reference, PROGRAMS if ALL[task].splits is interactions else "gobp"
        )
        Parts.setup_anndata(reference, labels_key=LABEL)
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = Parts(reference)
        model.train(
            enable_progress_bar=False, accelerator="cpu", **TRAINING.get(task, {})
        )
        chosen.append(model.chosen)
        truth = query.obs[LABEL].astype(str).to_numpy()
        for part, labels in model.label(query).items():
            labels.columns = labels.columns.astype(str)
            found[part].append(
                (truth, labels.idxmax(axis=1).to_numpy(), labels.max(axis=1).to_numpy())
            )
    weights = {"weight": float(np.mean(chosen))}
    return [
        {
            "task": task,
            "seed": seed,
            "part": part,
            **weights,
            **scores(*map(np.concatenate, zip(*each, strict=True))),
        }
        for part, each in found.items()
    ]


# --------------------------------------------------------------------------- the page


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    shown = list(METRICS)[:3]
    means = runs.groupby(["task", "part"])[shown].mean()
    rows = [
        [
            ALL[task].title,
            *(
                " / ".join(f"{means.loc[(task, part), metric]:.3f}" for metric in shown)
                for part in PARTS
            ),
        ]
        for task in ALL
        if task in means.index
    ]
    of_twelve = (
        means[means.index.get_level_values("task").isin(TASKS)].groupby("part").mean()
    )
    rows.append(
        [
            "*mean of the first twelve*",
            *(
                " / ".join(f"{of_twelve.loc[part, m]:.3f}" for m in shown)
                for part in PARTS
            ),
        ]
    )
    lines = [
        "# The network, the linear branch and their sum",
        "",
        f"Written by `python -m benchmarks.parts`. Accuracy / macro-F1 / calibration error, means of "
        f"{runs['seed'].nunique()} seeds. All three are of the same trainings, with all defaults. Each part is "
        "calibrated by itself on the cells that the training held out.",
        "",
        *table(["task", *PARTS.values()], rows),
        "",
        "The cells of the last tasks are made up: ten thousand for the reference, three thousand for the query. The",
        "label within a lineage says whether one of two programs of genes is active, or both or none, so that no line",
        "separates them. With defaults the network does not learn them either: many of the genes and gene sets are",
        "left out at each step, for cells of other batches. It does if nothing is left out, in 16 epochs in place of",
        "two.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="+", default=list(ALL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    path = given.out / "parts.json"
    result = json.loads(path.read_text()) if path.exists() else {"runs": []}
    result["versions"] = versions("scikit-learn")
    done = {(run["task"], run["seed"]) for run in result["runs"]}
    for seed in range(given.seeds):
        for task in given.tasks:
            if (task, seed) not in done:
                result["runs"] += one_run(task, given.data, seed)
                write(given.out, "parts", result, report(result))
    write(given.out, "parts", result, report(result))


if __name__ == "__main__":
    main()
