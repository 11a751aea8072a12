"""Share models through the Hugging Face Hub."""

from __future__ import annotations

from importlib.metadata import version as package_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from tosica._settings import logger
from tosica._validate import as_names, validate_params
from tosica.model._annotation import AnnotationMixin
from tosica.model._card import (
    PAGE,
    add_scores,
    card_facts,
    card_tags,
    escape,
    import_client,
    labels_table,
    markdown_table,
    one_line,
    organism_of,
)
from tosica.model._device import ACCELERATOR, DEVICE, is_rank_zero
from tosica.model._save_load import MODEL_FILE, SaveLoadMixin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import AnnOrMuData, AnyPath

CARD_FILE = "README.md"


class HubMixin(AnnotationMixin, SaveLoadMixin):
    """Download and upload of a model with its card."""

    @classmethod
    @validate_params(accelerator=ACCELERATOR, device=DEVICE)
    def from_hub(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        adata: AnnOrMuData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
        cache_dir: AnyPath | None = None,
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
        FileNotFoundError, ValueError
            As :meth:`load`. Other errors are those of the hub's client.

        Examples
        --------
        .. code-block:: python

            model = tosica.TOSICA.from_hub("lab/pbmc", revision="v1")
            model.annotate(query)
        """
        folder = import_client().snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            allow_patterns=[MODEL_FILE, CARD_FILE],
            library_name="tosica",
            library_version=package_version("tosica"),
        )
        # The folder is called by the commit.
        logger.info("from_hub: %s at commit %s", repo_id, Path(folder).name)
        return cls.load(folder, adata=adata, accelerator=accelerator, device=device)

    @validate_params()
    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        token: str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        commit_message: str | None = None,
        **about: Any,
    ) -> str:
        """Upload the model and its card to the Hugging Face Hub, in one commit.

        The reference is not uploaded. The model holds the names of labels, batches and genes, mean
        expression of each label, and training losses; see the page on sharing. The repository is
        made if there is none. Needs ``pip install 'tosica[hub]'``.

        Parameters
        ----------
        repo_id
            Owner and name, such as ``"lab/pbmc"``.
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
        **about
            ``tissue``, ``license`` and other facts, as in :meth:`get_model_card`.

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
        RuntimeError
            If the model is not trained. Other errors are those of the hub's client.

        Examples
        --------
        .. code-block:: python

            model.push_to_hub(
                "lab/pbmc", tissue="blood", license="cc-by-4.0", version="1"
            )
        """
        if not is_rank_zero(self):
            return ""
        load = f'tosica.TOSICA.from_hub("{repo_id}")  # pip install "tosica[hub]"'
        card = self.get_model_card(load=load, **about)
        if commit_message is None:
            model_version = about.get("version") or self.fingerprint
            commit_message = f"Upload version {model_version}"
        api = import_client().HfApi(
            token=token,
            library_name="tosica",
            library_version=package_version("tosica"),
        )
        with TemporaryDirectory() as folder:
            self.save(folder, overwrite=True)
            Path(folder, CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None and not create_pr:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                allow_patterns=[MODEL_FILE, CARD_FILE],
                commit_message=commit_message,
                revision=revision,
                create_pr=create_pr,
            )
        address = str(commit.pr_url or commit.commit_url)
        logger.info("push_to_hub: %s", address)
        return address

    @validate_params()
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
        load: str = 'tosica.TOSICA.load("folder")',
    ) -> str:
        """Get the card of the model, a page in Markdown that tells others what it is.

        The model fills in its labels with their numbers of cells, batches, genes, gene sets and
        held-out scores. The rest is said here. Needs ``pip install 'tosica[hub]'``.

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
        load
            Python that loads the model.

        Returns
        -------
        Markdown, with metadata in YAML in front, as the Hugging Face Hub reads it.

        Raises
        ------
        ModuleNotFoundError
            If ``huggingface_hub`` is not installed.
        TypeError
            If an argument is of the wrong type.
        RuntimeError
            If the model is not trained.

        Examples
        --------
        With a trained model and a query that it annotated:

        >>> card = model.get_model_card(tissue="blood", license="cc-by-4.0")
        >>> print(card.split("---")[1])
        <BLANKLINE>
        library_name: tosica
        license: cc-by-4.0
        tags:
        - biology
        ...
        """
        self._check_trained()
        tissues = [one_line(name) for name in as_names(tissue)]
        organism = one_line(organism or organism_of(self))
        subject = [*tissues, organism] if organism else tissues
        metadata = import_client().ModelCardData(
            library_name="tosica",
            license=license.lower(),
            tags=card_tags(self, organism, tissues),
        )
        facts: dict[str, str | None] = {
            "Tissue": ", ".join(tissues),
            "Organism": organism,
            **card_facts(self),
            "Version": version,
            "Fingerprint": self.fingerprint,
            "License": license,
        }
        if citation:
            facts["Reference data"] = citation
        if doi:
            facts["DOI"] = f"https://doi.org/{doi.removeprefix('https://doi.org/')}"
        if contact:
            facts["Contact"] = contact
        facts["Shared with"] = f"tosica {package_version('tosica')}"
        table = {
            "": list(facts),
            " ": [text or "not stated" for text in facts.values()],
        }
        about = f"**Description:** {escape(description)}" if description else ""
        labels = labels_table(self)
        codes = self.training_.held_out_codes
        if codes is None or not codes.shape[1]:
            scores = "None are kept in this model."
        else:
            scores = add_scores(self, codes, labels)
        return PAGE.format(
            metadata=metadata.to_yaml(),
            where=escape(", ".join(subject)),
            other_organisms=" and organisms" if organism else "",
            n_labels=len(self.labels),
            description=about,
            load=load,
            facts=markdown_table(table),
            labels=markdown_table(labels),
            scores=scores,
        )
