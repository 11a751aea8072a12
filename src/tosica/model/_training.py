"""Train a model on its reference, and give it first weights from a regulatory network."""

from __future__ import annotations

import time
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only
from scvi.data._constants import _MANAGER_UUID_KEY
from tqdm.auto import tqdm

from tosica._parallel import thread_pool
from tosica._settings import logger, quiet_libraries
from tosica._text import format_thousands
from tosica._validate import Fraction, InstanceOf, refuse_unknown, validate_params
from tosica.model._annbatch import AnnbatchReader
from tosica.model._checkpoint import CHECKPOINT_FILE, find_checkpoint
from tosica.model._device import ACCELERATOR, check_devices
from tosica.model._interrupt import restore_on_failure
from tosica.model._network_weights import read_network_weights
from tosica.model._phases import PHASES
from tosica.model._plan import make_config
from tosica.model._setup import code_holders
from tosica.model._state import TrainableModel, TrainingSettings, TrainingState
from tosica.model._trainer import TRAINER_ARGUMENTS, pop_progress_args

if TYPE_CHECKING:
    from tosica._types import AnyPath
    from tosica.model._state import Phase


class TrainingMixin(TrainableModel):
    """Training, and first weights from a network."""

    # Replaced in subclasses that train in another way.
    _training_phases: tuple[Phase, ...] = PHASES

    @validate_params(
        accelerator=ACCELERATOR,
        devices=InstanceOf(
            "'auto', a number of devices, or a list of their numbers",
            str,
            Integral,
            list,
            tuple,
        ),
        train_size=Fraction(zero=False, one=False),
        datamodule=InstanceOf("an AnnbatchReader", AnnbatchReader, optional=True),
    )
    def train(
        self,
        max_epochs: int | None = None,
        accelerator: str = "auto",
        devices: int | list[int] | str = "auto",
        train_size: float = 0.9,
        batch_size: int = 64,
        early_stopping: bool = False,
        calibrate: bool = True,
        refit: bool = True,
        check_labels: bool = True,
        plan_kwargs: dict[str, Any] | None = None,
        datamodule: AnnbatchReader | None = None,
        checkpoint_dir: AnyPath | None = None,
        resume: AnyPath | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        """Train on the reference.

        Ctrl-C while the network is trained ends the training after the current step: the model can
        be used and saved, the log says so, and ``KeyboardInterrupt`` is raised. A second Ctrl-C,
        one at another time, and any error leave the model as it was.

        Rare labels are drawn more often than they occur. In each minibatch a random half of the
        genes is hidden from three quarters of the cells, and three quarters of the gene sets
        are hidden. Logistic regressions whose weights go through the same tokens are fitted to
        the same cells, and the tokens start from their weights. Held-out cells choose the share
        of the network in the sum of both, if they tell.
        ``scvi.settings.seed`` makes the result reproducible.

        Parameters
        ----------
        max_epochs
            Passes over the training cells. By default so many that 3 000 cells are drawn, or 100
            times the square root of their number if that is more. ``limit_train_batches`` shortens
            the passes.
        accelerator, devices
            Device to train on, as in :class:`lightning.pytorch.Trainer`. With several devices and
            ``strategy="ddp"``, each runs the script in a process of its own.
        train_size
            Share of each label's cells to train on; the rest, at least one cell a label, is held
            out for validation and calibration.
        batch_size
            Cells in a minibatch; at most all of the training cells. With several devices, cells of
            each: two with 64 take the steps of one with 128.
        early_stopping
            Stop when the validation loss no longer falls, and restore the best epoch.
        calibrate
            Fit the temperature of the probabilities to the held-out cells.
        refit
            After calibration, fit the regressions to all cells, the held-out ones included.
            ``validation_indices`` describes the training before.
        check_labels
            Look for label errors by cross-validation. If they are more than 7 % of the reference,
            and not because its types are hard to separate, leave these cells out and warn;
            ``mislabeled_indices`` has their positions.
        plan_kwargs
            Parameters of the training plan: ``lr``, ``weight_decay``, ``gene_dropout``,
            ``complete_cells``, ``token_dropout``, ``modality_dropout``, ``label_smoothing``, ``warmup``.
        datamodule
            Reads the training cells of a reference that is a collection of annbatch; the model is
            made from its ``adata``. A reference that :func:`anndata.experimental.read_lazy` opened,
            or a backed one, needs none: from 65 536 cells on, it is read in blocks through a buffer,
            and smaller ones are read into memory.
        checkpoint_dir
            Folder for ``training.pt``, a checkpoint of Lightning that an interrupted training can
            resume from. It is replaced after each epoch of the network's first fit, and stays. By
            default there is none. For training on one device.
        resume
            File that ``checkpoint_dir`` led to, or its folder. The training goes on with the next
            epoch. On the same machine and with ``scvi.settings.seed``, the weights are exactly
            those of a training that was not interrupted. The model, its reference and all other
            arguments must be the same as before, but the model may be newly made. Nothing in the
            file is executed, so that states of ``callbacks`` must be tensors and plain values.
        **trainer_kwargs
            Passed to :class:`scvi.train.Trainer`, such as ``early_stopping_patience=10`` or
            ``precision="bf16-mixed"``. ``max_time``, in seconds or as Lightning takes it, ends the network
            that long after the call; regressions and calibration take their time, and if none is left
            for the network, the linear branch labels alone. ``enable_progress_bar=False`` takes the
            progress bar away, which is drawn on stderr and shows the phase, cells per second and the
            time left. Messages of Lightning about devices and products are left out unless
            ``tosica.settings.verbosity`` is ``"debug"``.

        Raises
        ------
        TypeError
            If an argument is of the wrong type, or neither a parameter of this method nor of the
            trainer.
        ValueError
            If the model has no reference, the reference was set up again or its genes have changed
            since the model was made, a parameter is out of range, there are no held-out cells to
            stop early by, the training diverges, ``max_time`` is over before a model without a
            linear branch has learnt anything, or several devices are asked for that are not there
            or cannot train one model together; if ``resume`` is damaged, or belongs to another
            model, reference or other arguments.
        FileNotFoundError
            If there is no file to resume from.
        OSError
            If the folder of the checkpoints cannot be made or written to.
        KeyboardInterrupt
            After Ctrl-C.

        Warns
        -----
        UserWarning
            If there are label errors, if no gene set
            distinguishes a label, or if ``max_time`` is over before the network's first step.
        """
        settings = TrainingSettings(
            max_epochs=max_epochs,
            train_size=train_size,
            batch_size=batch_size,
            early_stopping=early_stopping,
            calibrate=calibrate,
            refit=refit,
            check_labels=check_labels,
            plan=make_config(plan_kwargs),
        )
        refuse_unknown(self.train, trainer_kwargs, *TRAINER_ARGUMENTS)
        shows_bar, trainer_kwargs = pop_progress_args(trainer_kwargs)
        self._check_reference()
        if datamodule is not None and datamodule.adata is not self.adata:
            raise ValueError(
                "datamodule has other cells than the model: make the model from datamodule.adata."
            )
        check_devices(accelerator, devices)
        trainer_kwargs |= {"accelerator": accelerator, "devices": devices}
        is_first_process = getattr(rank_zero_only, "rank", 0) == 0
        state = TrainingState(
            self,
            settings,
            trainer_kwargs,
            shows_bar=shows_bar and is_first_process,
            blocks=datamodule,
        )
        if checkpoint_dir is not None:
            state.checkpoint = Path(checkpoint_dir, CHECKPOINT_FILE)
        if resume is not None:
            state.resume = find_checkpoint(resume)
        with quiet_libraries(), thread_pool(), restore_on_failure(self):
            for phase in self._training_phases:
                phase(state)
        _log_end(state)

    def start_from_network(self) -> None:
        """Start training from the weights and signs of a gene regulatory network.

        The token of each gene set with weights starts as the weighted sum of its genes, times a
        random vector: genes of opposite sign move the token in opposite directions. All other
        weights keep their random values, and training changes all of them. Call it before
        :meth:`train`. ``scvi.settings.seed`` makes the result reproducible.

        Raises
        ------
        KeyError
            If the mask was built from gene sets without weights.
        ValueError
            If the model has no reference, or one that was set up again since, or was trained already.

        Examples
        --------
        >>> import pandas as pd
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> network = pd.DataFrame(
        ...     {
        ...         "source": ["SPI1"] * 4 + ["PAX5"] * 4,
        ...         "target": [
        ...             "LYZ",
        ...             "CST3",
        ...             "FCN1",
        ...             "CD79A",
        ...             "CD79A",
        ...             "CD79B",
        ...             "CD19",
        ...             "LYZ",
        ...         ],
        ...         "weight": [1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0],
        ...     }
        ... )
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # so few genes are in a set
        ...     tosica.pp.build_mask(ref, network, min_genes=3)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(ref, embed_dim=16)
        >>> model.start_from_network()
        """
        self._check_reference()
        if self.is_trained_:
            raise ValueError(
                "The model was trained already: make a new one and call start_from_network before train."
            )
        self.module.embedding.start_from(read_network_weights(self))
        self._starts_from_network = True

    def _check_reference(self) -> None:
        """Refuse to train without the reference that was set up."""
        if self._is_extended:
            raise ValueError(
                "The model is one of load_query_data, without a reference to train on: call fit_new_labels in "
                "place of train."
            )
        if self.adata is None:
            raise ValueError(
                "The model has no reference to train on: pass one to TOSICA.load(folder, adata=...)."
            )
        # Codes of labels and batches are in its obs, where another setup overwrites them.
        own_id = self.adata_manager.id
        holders = code_holders(self.adata_manager)
        if any(data.uns.get(_MANAGER_UUID_KEY, own_id) != own_id for data in holders):
            raise ValueError(
                "The reference was set up again after the model was made, and its labels may be others: make a new "
                "model."
            )
        for modality in self.modalities:
            modality.check_reference(self.adata)


def _log_end(state: TrainingState) -> None:
    """Log how long the training took and how good its model is, or raise if Ctrl-C ended it."""
    trainer = state.runner.trainer
    if state.ended_early:
        resume = ""
        if state.checkpoint is not None and state.checkpoint.exists():
            resume = f"; to go on, call train with the same arguments and resume={str(state.checkpoint)!r}"
        # No warning, because the command line would show it: it saves no such model.
        logger.info(
            "train: ended early, after %s: the model can be used and saved%s",
            state.ended_early,
            resume,
        )
        raise KeyboardInterrupt
    if not trainer.is_global_zero:
        return
    n_epochs = trainer.current_epoch
    epochs = f"{n_epochs} epoch{'s' * (n_epochs != 1)}"
    if n_epochs < state.n_epochs:
        epochs += f" of {state.n_epochs} (stopped early)"
    validation = ""
    codes = state.model.training_.held_out_codes
    if codes is not None:
        n_cells = format_thousands(codes.shape[1])
        accuracy = state.model.held_out_accuracy_
        validation = f"; validation accuracy {accuracy:.1%} ({n_cells} cells)"
    logger.info(
        "train: %s on %s cells in %s%s",
        epochs,
        format_thousands(state.data.n_train + state.data.n_val),
        tqdm.format_interval(time.monotonic() - state.start_time),
        validation,
    )
