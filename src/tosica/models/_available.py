"""List the models of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tosica.models._index import MODEL_FILES, read_index

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = ("tissue", "organism", "n_labels", "n_cells", "version", "size", "license", "url")
_LAST = ("sha256", "doi", "description")


def available(index: str | Path | None = None) -> pd.DataFrame:
    """List the models of an index, which may lie in a folder or on a web server.

    tosica comes without an index: a lab or a consortium writes its own with :func:`write_index`,
    and tells others the address.

    Parameters
    ----------
    index
        Address (``http``, ``https`` or ``file``) or path of the index, or of the folder that it
        lies in. By default the one that the environment variable ``TOSICA_MODEL_INDEX`` names. An
        index of a web server is downloaded each time; if the server cannot be reached, the copy of
        the last time is read, and a warning is logged.

    Returns
    -------
    Table with a row for each model, indexed by ``name``: ``tissue``, ``organism``, ``n_labels``,
    ``n_cells``, ``version``, ``size`` (bytes), ``license``, ``url``, ``sha256`` (of the model's
    file), ``doi`` and ``description``. What the index does not state is missing.

    Raises
    ------
    TypeError
        If ``index`` is neither an address nor a path.
    ValueError
        If there is no index to read, or the file is no index.
    FileNotFoundError
        If there is no such file.
    ConnectionError
        If the server cannot be reached or does not have the index, and there is no copy.

    See Also
    --------
    download : download one of the models.

    Examples
    --------
    .. code-block:: python

        tosica.models.available("https://models.example.org/index.json")
    """
    entries = read_index(index).entries.values()
    rows = [
        {
            **entry.about,
            "url": entry.url,
            "size": sum(file.size for file in entry.files.values()),
            "sha256": entry.files[MODEL_FILES[0]].sha256,
        }
        for entry in entries
    ]
    names = pd.Index([entry.name for entry in entries], name="name", dtype=object)
    table = pd.DataFrame(rows, index=names, columns=[*_COLUMNS, *_LAST])
    return table.astype({"n_labels": "Int64", "n_cells": "Int64", "size": "Int64"})
