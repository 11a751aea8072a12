"""Write the index of a folder of models, so that others can list and download them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica._logging import logger
from tosica._replace_files import replacing
from tosica._validation import check_path, list_names, only_known
from tosica.model._model_about import FIELDS, check_about
from tosica.model._model_facts import read_facts
from tosica.model._tosica import TOSICA
from tosica.models._index import (
    FORMAT,
    INDEX_FILE,
    MODEL_FILES,
    is_model_name,
    is_web,
    parse_index,
)

if TYPE_CHECKING:
    from tosica.model._model_about import About


def write_index(folder: str | Path, about: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """Write the index of a folder of models, and the card of each model that has none.

    Every subfolder with a ``model.pt`` becomes one model of the index, under the name of the
    subfolder. Models of other servers, which were written into the index by hand, stay in it.
    Others read the index from the folder, or from any web server that serves the folder as it is.
    Call it again when a model was added, replaced or removed.

    Parameters
    ----------
    folder
        Folder with the folders that :meth:`tosica.TOSICA.save` made.
    about
        What is said of each model: its name to a dict with ``tissue`` and ``license`` and, if you
        like, ``organism``, ``description``, ``version``, ``doi``, ``citation`` and ``contact``, as
        in :meth:`tosica.TOSICA.get_model_card`. What the index in the folder says already need
        not be said again.

    Returns
    -------
    Path of the index, ``index.json`` in the folder. ``README.md`` is written beside a model unless
    there is one; a warning is logged if that describes another model.

    Raises
    ------
    TypeError
        If an argument or something that is said of a model is of the wrong type or missing.
    ValueError
        If the folder has no models, a model cannot be loaded or is not trained, its folder has a
        name that cannot be that of a model, or something that is said of a model is wrong.
    KeyError
        If ``about`` names a model that is not in the folder.
    FileNotFoundError
        If there is no such folder.
    OSError
        If a file cannot be written. The index that was there is unchanged.

    See Also
    --------
    available : list the models of an index.
    download : download one of them.

    Examples
    --------
    .. code-block:: python

        model.save("models/pbmc")
        tosica.models.write_index(
            "models", {"pbmc": {"tissue": "blood", "license": "cc-by-4.0", "version": "1"}}
        )
        tosica.models.available("models")
    """
    check_path("folder", folder)
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path)!r} with models.")
    found = {each.parent.name for each in path.glob(f"*/{MODEL_FILES[0]}")}
    # Hidden folders are of other programs, or temporary.
    names = sorted(name for name in found if not name.startswith("."))
    if not names:
        raise ValueError(
            f"{str(path)!r} has no folder with a {MODEL_FILES[0]}: save models into it with "
            "model.save(folder / name)."
        )
    wrong = [name for name in names if not is_model_name(name)]
    if wrong:
        raise ValueError(
            f"Folders cannot be named {list_names(wrong)}: rename them so that they have letters, "
            "digits, '.', '_' and '-' only, and begin with a letter or digit."
        )
    before, elsewhere = _read_before(path / INDEX_FILE)
    said = _said(names, about, before)
    models = {
        name: _describe(path / name, said[name], before.get(name, {}).get("organism"))
        for name in names
    }
    models |= {name: entry for name, entry in elsewhere.items() if name not in models}
    content = json.dumps({"format": FORMAT, "models": models}, indent=2, ensure_ascii=False)
    index = path / INDEX_FILE
    parse_index(content.encode(), str(index))
    with replacing(index) as [temporary]:
        temporary.write_text(f"{content}\n", encoding="utf-8", newline="\n")
    logger.info("models: wrote %d models to %s", len(models), index)
    return index


def _said(names: list[str], about: Any, before: dict[str, dict[str, Any]]) -> dict[str, About]:
    """What is said of each model, here or in the index that is there."""
    if about is not None and not isinstance(about, Mapping):
        raise TypeError(
            "about must be a dict of model names, such as {'pbmc': {'tissue': 'blood', 'license': "
            f"'cc-by-4.0'}}}}, not {type(about).__name__}."
        )
    given: Mapping[str, Any] = about or {}
    for name, fields in given.items():
        if name not in names:
            raise KeyError(
                f"about has {name!r}, and the folder no such model{only_known(str(name), names)}"
            )
        if not isinstance(fields, Mapping):
            raise TypeError(
                f"about[{name!r}] must be a dict, such as {{'tissue': 'blood', 'license': "
                f"'cc-by-4.0'}}, not {type(fields).__name__}."
            )
    found = {}
    for name in names:
        # The organism may have been that of gene sets, and the model another one since.
        kept = {key: value for key, value in before.get(name, {}).items() if key != "organism"}
        found[name] = check_about({**kept, **given.get(name, {})}, f"about[{name!r}]: ")
    return found


def _read_before(index: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What the index that is there says of each model, and its entries of models elsewhere."""
    if not index.is_file():
        return {}, {}
    content = index.read_bytes()
    try:
        entries = parse_index(content, str(index)).entries
    except ValueError as error:
        raise ValueError(
            f"{str(index)!r} would be replaced, and is no index that this version of tosica reads: "
            "move it elsewhere first."
        ) from error
    held = json.loads(content)["models"]
    elsewhere = {name: held[name] for name, entry in entries.items() if is_web(entry.url)}
    said = {name: {key: entry.about[key] for key in FIELDS} for name, entry in entries.items()}
    return said, elsewhere


def _describe(folder: Path, about: About, organism: str | None) -> dict[str, Any]:
    """Entry of a model in the index; its card is written if there is none."""
    model = TOSICA.load(folder, accelerator="cpu")
    if not model.is_trained:
        raise ValueError(f"The model in {str(folder)!r} is not trained: train it, or remove it.")
    facts = read_facts(model)
    said = asdict(about)
    said["organism"] = about.organism or facts.organism or organism
    _write_card(folder, model, said)
    return {
        **{key: value for key, value in said.items() if value is not None},
        "tissue": ", ".join(about.tissue),
        "n_labels": len(facts.labels),
        "n_cells": facts.n_cells or None,
        "url": f"{folder.name}/",
        "files": {name: _measure(folder / name) for name in MODEL_FILES},
    }


def _measure(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _write_card(folder: Path, model: TOSICA, said: dict[str, Any]) -> None:
    path = folder / MODEL_FILES[1]
    if path.exists():
        if model.fingerprint not in path.read_text(encoding="utf-8", errors="replace"):
            logger.warning(
                "models: %s describes another model than the one beside it: delete it, and it is "
                "written anew",
                path,
            )
        return
    load = (
        f'folder = tosica.models.download("{folder.name}")  # index="…", or TOSICA_MODEL_INDEX\n'
        "model = tosica.TOSICA.load(folder)"
    )
    with replacing(path) as [temporary]:
        temporary.write_text(model._make_card(load, **said), encoding="utf-8", newline="\n")
