"""Files to and from the Hugging Face Hub; every failure of its client is one sentence."""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica._download import reason
from tosica._validation import check_string
from tosica.model._checkpoint import MODEL_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

CARD_FILE = "README.md"
# By it scvi-tools knows the class of a model.
SCVI_FILE = "_scvi_required_metadata.json"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO_ID = re.compile(f"{_NAME}/{_NAME}")
_LOG_IN = "log in with 'hf auth login', or pass a token"


def check_repo_id(repo_id: Any) -> None:
    """Check that a value is the name of a model on the hub, such as ``"lab/pbmc"``.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is another string, such as a folder.
    """
    if isinstance(repo_id, Path):
        raise TypeError(
            f"repo_id must be the name of a model on the Hugging Face Hub, not a path: load a "
            f"folder with tosica.TOSICA.load({str(repo_id)!r})."
        )
    check_string("repo_id", repo_id)
    is_name = _REPO_ID.fullmatch(repo_id) and len(repo_id) <= 96
    if not is_name or "--" in repo_id or ".." in repo_id or repo_id.endswith(".git"):
        raise ValueError(
            f"repo_id must be an owner and a name on the Hugging Face Hub, such as 'lab/pbmc', not "
            f"{repo_id!r}{_folder_hint(repo_id)}."
        )


def download_model(
    repo_id: str, *, revision: str | None, cache_dir: str | Path | None, token: str | None
) -> Path:
    """Download the files of a model, and nothing else that its repository holds.

    Parameters
    ----------
    repo_id, revision, cache_dir, token
        As in :meth:`tosica.TOSICA.from_hub`.

    Returns
    -------
    The folder with the files. Its name is the commit.

    Raises
    ------
    ImportError, FileNotFoundError, PermissionError, ConnectionError, OSError
        As :meth:`tosica.TOSICA.from_hub`.
    """
    hub = _import_hub()
    with _one_sentence(repo_id, revision, "download"):
        folder = hub.snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            allow_patterns=[MODEL_FILE, CARD_FILE, SCVI_FILE],
            library_name="tosica",
            library_version=version("tosica"),
        )
    return Path(folder)


def upload_model(
    folder: Path,
    repo_id: str,
    *,
    private: bool,
    token: str | None,
    revision: str | None,
    create_pr: bool,
    commit_message: str,
) -> str:
    """Upload the files of a model in one commit, and make the repository if there is none.

    Parameters
    ----------
    folder
        Folder with the model and its card.
    repo_id, private, token, revision, create_pr, commit_message
        As in :meth:`tosica.TOSICA.push_to_hub`.

    Returns
    -------
    Address of the commit or of the pull request.

    Raises
    ------
    ImportError, FileNotFoundError, PermissionError, ConnectionError, ValueError
        As :meth:`tosica.TOSICA.push_to_hub`.
    """
    hub = _import_hub()
    api = hub.HfApi(token=token, library_name="tosica", library_version=version("tosica"))
    # In one commit, so that nobody gets the card of one model and the file of another.
    operations = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name)
        for name in (CARD_FILE, MODEL_FILE)
    ]
    with _one_sentence(repo_id, None if create_pr else revision, "upload"):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repo_id,
            operations=operations,
            commit_message=commit_message,
            revision=revision,
            create_pr=create_pr,
        )
    return str(commit.pr_url or commit.commit_url)


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModuleNotFoundError(
            "huggingface_hub is not installed: pip install 'tosica[hub]'."
        ) from error
    return huggingface_hub


def _folder_hint(repo_id: str) -> str:
    """What to do with a folder of this name, as the end of a sentence."""
    try:
        is_folder = bool(repo_id) and Path(repo_id).is_dir()
    except (OSError, ValueError):  # no name of a file either
        is_folder = False
    return f"; load a folder with tosica.TOSICA.load({repo_id!r})" if is_folder else ""


@contextmanager
def _one_sentence(repo_id: str, revision: str | None, doing: str) -> Iterator[None]:
    """Raise an error of the hub's client as one sentence, with the type that fits."""
    try:
        yield
    # The client's own errors, and those of its HTTP library, which differs between versions.
    except Exception as error:
        raise _translated(error, repo_id, revision, doing) from error


def _translated(error: Exception, repo_id: str, revision: str | None, doing: str) -> Exception:
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return PermissionError(
                f"The authors of {repo_id!r} decide who may download it: ask for access on its "
                f"page of the Hugging Face Hub, and {_LOG_IN}."
            )
        case errors.RepositoryNotFoundError():
            return FileNotFoundError(
                f"There is no model {repo_id!r} on the Hugging Face Hub, or it is private: check "
                f"the name, or {_LOG_IN}{_folder_hint(repo_id)}."
            )
        case errors.RevisionNotFoundError():
            return FileNotFoundError(
                f"{repo_id!r} has no revision {revision or 'main'!r}: pass one of its branches, "
                "tags or commits, or none for the newest."
            )
        case errors.OfflineModeIsEnabled():
            return ConnectionError(
                f"The Hugging Face Hub is needed for the {doing} of {repo_id!r}, and "
                "HF_HUB_OFFLINE is set: unset it."
            )
        case errors.LocalEntryNotFoundError():
            return _not_cached(error, repo_id, doing)
        case errors.HfHubHTTPError():
            return _refused(error, repo_id, doing)
        case ValueError():
            # Its first line says what is wrong, such as metadata in the card.
            said = str(error).strip().split("\n")[0].rstrip(".")
            return ValueError(f"The Hugging Face Hub refuses the {doing} of {repo_id!r} ({said}).")
        # Not those of the network, of Python and of HTTP libraries.
        case OSError() if type(error) in (OSError, PermissionError, NotADirectoryError):
            return type(error)(
                f"{repo_id!r} could not be stored ({reason(error)}): make room, or pass a "
                "cache_dir that you may write to."
            )
    return _unreachable(type(error).__name__, repo_id, doing)


def _not_cached(error: Exception, repo_id: str, doing: str) -> Exception:
    """There is no answer from the hub, and no complete copy here either."""
    from huggingface_hub import errors

    cause = error.__cause__
    if isinstance(cause, errors.HfHubHTTPError):
        return _refused(cause, repo_id, doing)
    if cause is None or isinstance(cause, errors.OfflineModeIsEnabled):
        return ConnectionError(
            f"{repo_id!r} is not in the cache, and HF_HUB_OFFLINE is set: unset it, or download "
            f"the model on another machine{_folder_hint(repo_id)}."
        )
    return _unreachable(type(cause).__name__, repo_id, doing)


def _refused(error: Any, repo_id: str, doing: str) -> Exception:
    """The hub answered, and not as it was asked to."""
    status = error.response.status_code
    said = str(getattr(error, "server_message", None) or "").strip().split("\n")[0].rstrip(".")
    shown = f"HTTP status {status}{f', {said!r}' if said else ''}"
    if status in (401, 403):
        may = "with permission to write" if doing == "upload" else "with permission to read"
        return PermissionError(
            f"The Hugging Face Hub refuses the {doing} of {repo_id!r} ({shown}): {_LOG_IN} {may}."
        )
    if status in (400, 409, 413, 422):
        return ValueError(f"The Hugging Face Hub refuses the {doing} of {repo_id!r} ({shown}).")
    return ConnectionError(
        f"The Hugging Face Hub does not answer the {doing} of {repo_id!r} ({shown}): try again."
    )


def _unreachable(what: str, repo_id: str, doing: str) -> ConnectionError:
    cached = ", and it is not in the cache" if doing == "download" else ""
    return ConnectionError(
        f"The Hugging Face Hub cannot be reached for the {doing} of {repo_id!r} ({what}){cached}: "
        f"check the network and try again{_folder_hint(repo_id) if doing == 'download' else ''}."
    )
