"""Upload a model to the Hugging Face Hub, and download one."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tosica._settings import logger
from tosica.hub._card import import_client, make_card

if TYPE_CHECKING:
    from scvi.model.base import BaseModelClass

_MODEL_FILE, _CARD_FILE = "model.pt", "README.md"


def push(
    model: BaseModelClass,
    repo_id: str,
    *,
    private: bool,
    token: str | None,
    revision: str | None,
    create_pr: bool,
    commit_message: str | None,
    **about: Any,
) -> str:
    """Upload a model and its card in one commit.

    Parameters
    ----------
    model
        The model.
    repo_id, private, token, revision, create_pr, commit_message
        As in :meth:`tosica.TOSICA.push_to_hub`.
    **about
        As in :meth:`tosica.TOSICA.get_model_card`.

    Returns
    -------
    Address of the commit or of the pull request.
    """
    load = f'tosica.TOSICA.from_hub("{repo_id}")  # pip install "tosica[hub]"'
    card = make_card(model, load=load, **about)
    api = import_client().HfApi(token=token, library_name="tosica", library_version=_version())
    with TemporaryDirectory() as folder:
        model.save(folder, overwrite=True)
        (Path(folder) / _CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=[_MODEL_FILE, _CARD_FILE],
            commit_message=commit_message or f"Upload version {about.get('version') or model.fingerprint}",
            revision=revision,
            create_pr=create_pr,
        )
    address = str(commit.pr_url or commit.commit_url)
    logger.info("push_to_hub: %s", address)
    return address


def pull(repo_id: str, *, revision: str | None, cache_dir: str | Path | None, token: str | None) -> Path:
    """Download a model and its card, and nothing else that the repository holds.

    Parameters
    ----------
    repo_id, revision, cache_dir, token
        As in :meth:`tosica.TOSICA.from_hub`.

    Returns
    -------
    The folder with the files. Its name is the commit.
    """
    folder = import_client().snapshot_download(
        repo_id,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        allow_patterns=[_MODEL_FILE, _CARD_FILE],
        library_name="tosica",
        library_version=_version(),
    )
    logger.info("from_hub: %s at commit %s", repo_id, Path(folder).name)
    return Path(folder)


def _version() -> str:
    return version("tosica")
