"""Kind of every parameter of the model class and of its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrong_input import kinds as k
from wrong_input.kinds import Wrong

if TYPE_CHECKING:
    from wrong_input.kinds import Kind

_PREDICTED: dict[str, Kind] = {
    "adata": [*k.NO_DATA[1:], *k.MUDATA, *k.NO_CELLS, *k.NO_GENES],
}
_SETUP: dict[str, Kind] = {
    "labels_key": [
        *k.STRING,
        Wrong("kinds", KeyError, r"has no column 'kinds'|^labels_key 'kinds' is a column neither"),
        Wrong("", KeyError, r"has no column ''|^labels_key '' is a column neither"),
    ],
    "unlabeled_category": [
        Wrong(["a"], TypeError, "^unlabeled_category must be a label or None, not "),
    ],
    "batch_key": [
        *k.OPTIONAL_STRING,
        Wrong("donors", KeyError, "has no column 'donors'|^batch_key 'donors' is a column neither"),
    ],
    "min_cells": k.count(),
    "mask_key": [
        *k.STRING,
        Wrong("nothing", KeyError, r"^There is no mask in .*: call tosica\.pp\.build_mask"),
    ],
}

OF_MODEL: dict[str, dict[str, Kind]] = {
    "TOSICA": {
        "adata": [
            *k.NO_DATA,
            Wrong(
                lambda w: w.reference,
                ValueError,
                r"^adata was not set up.*: call TOSICA\.setup_"
                "anndata",
                "not set up",
            ),
            Wrong(
                lambda w: w.untrained.adata.copy(),
                ValueError,
                "^adata is a copy or a part of",
                "a copy",
            ),
            Wrong(
                lambda w: w.mdata,
                ValueError,
                r"^mdata was not set up.*TOSICA\.setup_mudata",
                "MuData",
            ),
        ],
        "registry": [Wrong("x", TypeError, "^registry must be a dict, as TOSICA.load_registry")],
        "embed_dim": [
            *k.count(),
            Wrong(7, ValueError, r"^embed_dim \(7\) must be a multiple of n_heads \(4\)"),
        ],
        "n_heads": k.count(),
        "n_layers": k.count(),
        "linear": k.FLAG,
        "max_gene_sets": k.count(optional=True),
        "modules": k.FLAG,
    },
    "TOSICA.setup_anndata": _SETUP | {"adata": [*k.NO_DATA, *k.MUDATA, *k.NO_CELLS, *k.NO_GENES]},
    "TOSICA.setup_mudata": _SETUP
    | {
        "mdata": [
            Wrong(None, TypeError, "^mdata must be a MuData, not NoneType"),
            Wrong("a.h5mu", TypeError, "^mdata must be a MuData, not str"),
            Wrong(
                lambda w: w.reference, TypeError, r"AnnData: call TOSICA\.setup_anndata", "AnnData"
            ),
        ],
        "modalities": [
            Wrong("rna", TypeError, "^modalities must be a dict of roles and names"),
            Wrong({}, ValueError, "^modalities is empty"),
            Wrong({"rna": 5}, TypeError, "^modalities must be a dict of roles and names"),
            Wrong({"adt": "rna"}, ValueError, "^modalities has a role 'adt'; the roles"),
            Wrong({"rna": "x"}, KeyError, "^mdata has no modality 'x'; its modalities: 'rna'"),
        ],
        "layers": [
            Wrong("counts", TypeError, "^layers must be a dict of modality and layer"),
            Wrong({"x": "counts"}, KeyError, "^layers names 'x', which is none of the modalities"),
            Wrong({"rna": "x"}, KeyError, r"^mdata\['rna'\] has no layer 'x', only 'counts'"),
        ],
    },
    # It always raises, and says what to do instead.
    "TOSICA.setup_annbatch": {},
    "TOSICA.train": {
        "max_epochs": k.count(optional=True),
        "devices": [
            Wrong(1.5, TypeError, "^devices must be "),
            Wrong(0, ValueError, "^devices must be "),
            Wrong("x", ValueError, "^devices must be "),
            Wrong("0", ValueError, "^devices must be "),
        ],
        "train_size": [
            *k.FRACTION,
            Wrong(1, ValueError, "^train_size must lie between 0 and 1, not 1"),
        ],
        "batch_size": k.count(),
        "early_stopping": k.FLAG,
        "calibrate": k.FLAG,
        "refit": k.FLAG,
        "check_labels": k.FLAG,
        "correct_batches": k.FLAG,
        "compile": k.FLAG,
        "checkpoint_dir": [
            Wrong(5, TypeError, "^checkpoint_dir must be a path"),
            Wrong("", ValueError, "^checkpoint_dir is an empty string"),
            Wrong(lambda w: w.folder / "sets.gmt", FileExistsError, "cannot be made", "a file"),
        ],
        "checkpoint_minutes": k.number(too_small=0),
        "datamodule": [Wrong(5, TypeError, r"^datamodule must be None or a tosica\.model\.Annb")],
        "resume": [
            Wrong(5, TypeError, "^resume must be a path"),
            Wrong("", ValueError, "^resume is an empty string"),
            Wrong("no/such/file", FileNotFoundError, "^'no/such/file' cannot be read"),
            Wrong(lambda w: w.folder, FileNotFoundError, r"training\.pt' cannot be read", "empty"),
            Wrong(lambda w: w.folder / "sets.gmt", ValueError, "is no checkpoint", "no file of it"),
            Wrong(
                lambda w: w.folder / "model" / "model.pt", ValueError, "is no checkpoint", "a model"
            ),
        ],
        "plan_kwargs": [
            Wrong(5, TypeError, "^plan_kwargs must be a dict, such as "),
            Wrong({"dropout": 0.1}, TypeError, "^plan_kwargs has no setting 'dropout', only 'lr'"),
            Wrong({"warmup": 5}, ValueError, "^warmup must lie between 0 and 1, not 5"),
            Wrong({"warmup": "5"}, TypeError, "^warmup must be a number, not '5'"),
            Wrong({"lr": 0}, ValueError, "^lr must be above 0, not 0"),
            Wrong({"lr": k.NAN}, ValueError, "^lr must be a finite number, not nan"),
            Wrong({"weight_decay": -1}, ValueError, "^weight_decay must be at least 0, not -1"),
            Wrong({"gene_dropout": 1}, ValueError, "^gene_dropout must be at least 0 and below 1"),
            Wrong({"label_smoothing": 1}, ValueError, "^label_smoothing must be at least 0 and"),
        ],
    },
    "TOSICA.annotate": _PREDICTED
    | {
        "cutoff": k.CUTOFF,
        "probabilities": k.FLAG,
        "precision": k.CHOICE,
        "enable_progress_bar": k.FLAG,
    },
    "TOSICA.predict": _PREDICTED | {"soft": k.FLAG},
    "TOSICA.predict_set": _PREDICTED
    | {
        "coverage": [
            *k.FRACTION,
            Wrong(1, ValueError, "^coverage must lie between 0 and 1, not 1"),
        ],
        "allow_empty": k.FLAG,
        "ontology": [
            *k.FLAG,
            Wrong(True, ValueError, "^ontology=True was given, but no label of the model has a te"),
        ],
    },
    "TOSICA.recalibrate": _PREDICTED | {"adata": k.NO_DATA, "labels_key": k.column()},
    "TOSICA.get_attention": _PREDICTED | {"unannotated": k.FLAG},
    "TOSICA.get_latent_representation": _PREDICTED,
    "TOSICA.iter_batches": _PREDICTED,
    "TOSICA.to_device": {
        "device": [
            *(
                Wrong(value, TypeError, "^device must be 'cpu', 'cuda', 'cuda:0' and so on, or")
                for value in (None, 1.5, True, ["cpu"])
            ),
            *(
                Wrong(value, ValueError, "^device must be 'cpu', 'cuda', 'cuda:0' and so on, or")
                for value in ("x", "", "gpu", "cuda:x", -1)
            ),
            *(
                Wrong(
                    value,
                    ValueError,
                    r"but torch finds (no GPU|GPUs up to number \d+) here: pass 'cpu'",
                )
                for value in ("cuda:99", 99)
            ),
        ],
    },
    "TOSICA.get_gene_weights": {"how": k.CHOICE},
    "TOSICA.get_linear_weights": {},
    "TOSICA.get_var_names": {"legacy_mudata_format": k.FLAG},
    "TOSICA.start_from_network": {},
    "TOSICA.save": {
        "dir_path": [
            *k.PATH,
            Wrong(lambda w: w.folder, FileExistsError, "exists: choose another folder", "exists"),
        ],
        "overwrite": k.FLAG,
        "save_anndata": k.FLAG,
    },
    "TOSICA.load": {
        "adata": [*k.NO_DATA[1:], Wrong(lambda w: w.query[:0].copy(), ValueError, "no cells", "0")],
    },
    "TOSICA.load_query_data": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "reference_model": [*k.PATH, *k.MISSING_PATH],
        "labels_key": k.column(optional=True),
        "unlabeled_category": _SETUP["unlabeled_category"],
    },
    "TOSICA.from_hub": {},
    "TOSICA.push_to_hub": {},
    "TOSICA.get_model_card": {},
    "TOSICA.load_legacy": {
        "project_dir": [*k.PATH, *k.MISSING_PATH],
        "var_names": [
            Wrong(5, TypeError, "^var_names must be a list of gene names, such as "),
            Wrong("G0", TypeError, "^var_names must be a list of gene names, such as "),
        ],
        "n_heads": k.count(),
        "weights": k.OPTIONAL_STRING,
        "labels_key": k.OPTIONAL_STRING,
        "target_sum": k.number(too_small=0),
        "adata": k.NO_DATA[1:],
    },
    "TOSICA.load_registry": {},
    "TOSICA.view_setup_args": {},
    "TOSICA.convert_legacy_save": {},
}
