"""Share a model through the Hugging Face Hub, and load one from there."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from tosica._logging import logger
from tosica._validation import check_data, check_flags, check_path, check_string
from tosica.model._checkpoint import MODEL_FILE
from tosica.model._device import find_device
from tosica.model._distributed import writes_files
from tosica.model._hub_client import (
    CARD_FILE,
    SCVI_FILE,
    check_repo_id,
    download_model,
    upload_model,
)
from tosica.model._model_about import check_about
from tosica.model._model_card import make_card
from tosica.model._model_facts import read_facts
from tosica.model._save_load_mixin import SaveLoadMixin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from mudata import MuData


class HubMixin(SaveLoadMixin):
    """Models on the Hugging Face Hub, and the card of a model."""

    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        adata: AnnData | MuData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
        cache_dir: str | Path | None = None,
        token: str | None = None,
    ) -> Self:
        """Load a model from the Hugging Face Hub; nothing that was downloaded is executed.

        Only the model and its card are downloaded, whatever else the repository holds, and the
        model is loaded as :meth:`load` does. The files stay in the cache of the hub's client. If
        the hub cannot be reached, they are taken from there. Needs ``pip install 'tosica[hub]'``.

        Parameters
        ----------
        repo_id
            Owner and name, such as ``"lab/pbmc"``.
        revision
            Branch, tag or commit. By default the newest version, which its owner may replace at any
            time; a commit always gives the same model.
        adata, accelerator, device
            As in :meth:`load`.
        cache_dir
            Folder to keep the files in. By default that of the client, see ``HF_HOME``.
        token
            Token of the hub, for private models. By default that of ``hf auth login`` or
            ``HF_TOKEN``.

        Returns
        -------
        The model.

        Raises
        ------
        ModuleNotFoundError
            If ``huggingface_hub`` is not installed.
        TypeError
            If an argument is of the wrong type.
        ValueError
            If ``repo_id`` is no owner and name, and as :meth:`load`; if the repository holds a
            model of another class.
        FileNotFoundError
            If there is no such model or revision, or the repository holds no model of tosica.
        PermissionError
            If the model is not for everybody and the token does not fit.
        ConnectionError
            If the hub cannot be reached, and the model is not in the cache.
        OSError
            If the files cannot be stored.

        Examples
        --------
        .. code-block:: python

            model = tosica.TOSICA.from_hub("lab/pbmc", revision="v1")
            model.annotate(query)
        """
        check_repo_id(repo_id)
        _check_revision(revision)
        check_string("token", token, optional=True)
        if cache_dir is not None:
            check_path("cache_dir", cache_dir)
        if adata is not None:
            check_data(adata, mudata=True)
        find_device(accelerator, device)
        folder = download_model(repo_id, revision=revision, cache_dir=cache_dir, token=token)
        _check_is_tosica(folder, repo_id, cls.__name__)
        logger.info("from_hub: %s at commit %s", repo_id, folder.name)
        return cls.load(folder, adata=adata, accelerator=accelerator, device=device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        tissue: str | Sequence[str],
        license: str,  # noqa: A002 # as the hub calls it
        organism: str | None = None,
        description: str | None = None,
        version: str | None = None,
        doi: str | None = None,
        citation: str | None = None,
        contact: str | None = None,
        private: bool = False,
        token: str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        commit_message: str | None = None,
    ) -> str:
        """Upload the model and its card to the Hugging Face Hub, in one commit.

        The reference is not uploaded. The model holds the names of labels, batches and genes, mean
        expression of each label, and training losses; see the page on sharing. The repository is
        made if there is none. Needs ``pip install 'tosica[hub]'``.

        Parameters
        ----------
        repo_id
            Owner and name, such as ``"lab/pbmc"``.
        tissue, license, organism, description, version, doi, citation, contact
            As in :meth:`get_model_card`.
        private
            Whether only its owners see a repository that is made. One that exists stays as it is.
        token
            Token of the hub with permission to write. By default that of ``hf auth login`` or
            ``HF_TOKEN``.
        revision
            Branch to commit to; it is made if there is none. By default ``"main"``.
        create_pr
            Propose the commit in a pull request.
        commit_message
            By default the version of the model.

        Returns
        -------
        Address of the commit or of the pull request; empty in all but the first of several
        processes that have trained one model.

        Raises
        ------
        ModuleNotFoundError
            If ``huggingface_hub`` is not installed.
        TypeError
            If an argument is of the wrong type.
        ValueError
            If ``repo_id`` is no owner and name, a text is empty, ``doi`` is none, or the hub does
            not accept the commit.
        RuntimeError
            If the model is not trained.
        FileNotFoundError
            If ``create_pr`` is true and there is no such revision.
        PermissionError
            If the token does not allow it.
        ConnectionError
            If the hub cannot be reached.

        Examples
        --------
        .. code-block:: python

            model.push_to_hub("lab/pbmc", tissue="blood", license="cc-by-4.0", version="1")
        """
        check_repo_id(repo_id)
        _check_revision(revision)
        check_string("token", token, optional=True)
        check_string("commit_message", commit_message, optional=True)
        check_flags(private=private, create_pr=create_pr)
        card = self._make_card(
            f'model = tosica.TOSICA.from_hub("{repo_id}")  # pip install "tosica[hub]"',
            tissue=tissue,
            license=license,
            organism=organism,
            description=description,
            version=version,
            doi=doi,
            citation=citation,
            contact=contact,
        )
        if not writes_files(self):
            return ""
        message = commit_message or f"Upload version {version or self.fingerprint}"
        with TemporaryDirectory() as name:
            folder = Path(name)
            self.save(folder, overwrite=True)
            (folder / CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
            address = upload_model(
                folder,
                repo_id,
                private=private,
                token=token,
                revision=revision,
                create_pr=create_pr,
                commit_message=message,
            )
        logger.info("push_to_hub: %s", address)
        return address

    def get_model_card(
        self,
        *,
        tissue: str | Sequence[str],
        license: str,  # noqa: A002 # as the hub calls it
        organism: str | None = None,
        description: str | None = None,
        version: str | None = None,
        doi: str | None = None,
        citation: str | None = None,
        contact: str | None = None,
    ) -> str:
        """Get the card of the model, a page in Markdown that tells others what it is.

        The model fills in its labels with their numbers of cells, batches, genes, gene sets and
        held-out scores. The rest is said here.

        Parameters
        ----------
        tissue
            Tissue of the reference, or several.
        license
            License that others may use the model under, such as ``"cc-by-4.0"``.
        organism
            By default that of the gene sets, if they tell it.
        description
            What the reference is: condition, protocol, who gave the labels.
        version
            Version of the model.
        doi
            DOI of the model or of its reference.
        citation
            What to cite for the reference.
        contact
            Whom to ask.

        Returns
        -------
        Markdown, with metadata in YAML in front, as the Hugging Face Hub reads it.

        Raises
        ------
        TypeError
            If an argument is of the wrong type.
        ValueError
            If a text is empty, or ``doi`` is none.
        RuntimeError
            If the model is not trained.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> tosica.pp.build_mask(adata, max_gene_sets=20)
        >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(adata, embed_dim=16)
        >>> model.train(max_epochs=1, enable_progress_bar=False)
        >>> card = model.get_model_card(tissue="blood", license="cc-by-4.0")
        >>> print(card.split("---")[1])
        <BLANKLINE>
        library_name: tosica
        license: "cc-by-4.0"
        tags:
        - "biology"
        ...
        """
        return self._make_card(
            'model = tosica.TOSICA.load("folder")',
            tissue=tissue,
            license=license,
            organism=organism,
            description=description,
            version=version,
            doi=doi,
            citation=citation,
            contact=contact,
        )

    def _make_card(self, load: str, **about: Any) -> str:
        """Make the card, with the code that loads the model."""
        said = check_about(about)
        self._check_if_trained(
            warn=False,
            message="The model is not trained: call model.train() first, or load a trained one.",
        )
        terms = self.ontology_term_ids_
        return make_card(read_facts(self), said, load=load, ontology_term_ids=terms)


def _check_revision(revision: Any) -> None:
    check_string("revision", revision, optional=True)
    if revision is not None and not revision.strip():
        raise ValueError("revision is an empty string: name a branch, a tag or a commit.")


def _check_is_tosica(folder: Path, repo_id: str, class_name: str) -> None:
    """Refuse what is no model of tosica, before its file is opened."""
    metadata = folder / SCVI_FILE
    if metadata.is_file():
        try:
            name = json.loads(metadata.read_bytes())["model_cls_name"]
        except (OSError, ValueError, KeyError, TypeError):
            name = None
        if name != class_name:
            raise ValueError(
                f"{repo_id!r} holds a model of scvi-tools{f' ({name})' if name else ''}, not a "
                f"{class_name} model: load it with scvi.hub.HubModel."
            )
    if not (folder / MODEL_FILE).is_file():
        raise FileNotFoundError(
            f"{repo_id!r} holds no {MODEL_FILE}, so it is not a model of tosica: check the name "
            "and the revision."
        )
