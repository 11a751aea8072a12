"""The manifest of an annotation from disk to disk: what is annotated, by what, in which parts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tosica._files import replace_file

if TYPE_CHECKING:
    from tosica.model._annotation import Precision

_MANIFEST = "manifest.json"
MODEL = "model"
# How messages call what a manifest holds.
_WHAT = {
    "tosica": "version of tosica",
    "model": "model",
    "query": "query",
    "n_obs": "number of cells",
}


@dataclass(frozen=True)
class Settings:
    """What decides the content of every part, and how the query is divided.

    Parameters
    ----------
    layer, use_raw
        Which matrix is read.
    probabilities
        Whether to keep the probability of every label.
    precision
        As in :meth:`tosica.TOSICA.annotate`.
    cells_per_part
        Number of cells of a part; the last one may have fewer.
    """

    layer: str | None = None
    use_raw: bool = False
    probabilities: bool = False
    precision: Precision = "32-true"
    cells_per_part: int = 49_152


@dataclass(frozen=True)
class Plan:
    """What a manifest says.

    Parameters
    ----------
    folder
        Folder of the manifest, the parts, and a copy of the model.
    path
        Where the query is.
    n_obs
        Number of its cells.
    query
        Hash of the query, see :meth:`Store.digest`.
    model
        Fingerprint of the model.
    settings
        What else decides the content of the parts.
    tosica
        Version of the package.
    """

    folder: Path
    path: str
    n_obs: int
    query: str
    model: str
    settings: Settings
    tosica: str = version("tosica")

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-self.n_obs // self.settings.cells_per_part)

    def cells(self, part: int) -> tuple[int, int]:
        """First cell of a part, and the one after its last."""
        size = self.settings.cells_per_part
        return part * size, min((part + 1) * size, self.n_obs)

    def file(self, part: int) -> Path:
        """File of a part."""
        return self.folder / f"part-{part:06d}.h5"

    def missing(self) -> list[int]:
        """Parts that are still to be annotated."""
        return [part for part in range(self.n_parts) if not self.file(part).is_file()]

    def identity(self) -> str:
        """Hash of all that decides the content of the parts."""
        content = json.dumps(self._content(), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def write(self) -> None:
        """Write the manifest."""
        with replace_file(self.folder / _MANIFEST) as path:
            text = json.dumps({**self._content(), "path": self.path}, indent=2)
            path.write_text(f"{text}\n", encoding="utf-8")

    def check_begun(self) -> bool:
        """Whether work on this plan was begun in the folder.

        Raises
        ------
        ValueError
            If work on another plan was.
        """
        try:
            begun = json.loads((self.folder / _MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        except ValueError:
            begun = {}
        own = self._content()
        different = [name for name, value in own.items() if begun.get(name) != value]
        if not different:
            return True
        first = different[0]
        what = _WHAT.get(first, f"{first}={begun.get(first)!r}")
        other = f"with another {what}" if first in _WHAT else f"with {what}"
        raise ValueError(
            f"{str(self.folder)!r} holds parts of an annotation that was begun {other}: go on as "
            "it was begun, or pass overwrite=True to begin anew, or another output."
        )

    def _content(self) -> dict[str, object]:
        own = {"tosica": self.tosica, "model": self.model, "query": self.query, "n_obs": self.n_obs}
        return {**own, **asdict(self.settings)}


def make_plan(
    folder: Path, path: str, n_obs: int, query: str, model: str, settings: Settings
) -> Plan:
    """Make a plan for a query that may stay where it is while others work on it."""
    absolute = path if "://" in path else str(Path(path).resolve())
    return Plan(folder, absolute, n_obs, query, model, settings)


def read_plan(folder: Path) -> Plan:
    """Read the manifest of a folder, as another process wrote it.

    Raises
    ------
    RuntimeError
        If that process had another version of tosica.
    """
    content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    own = version("tosica")
    if content["tosica"] != own:
        raise RuntimeError(
            f"this worker has tosica {own}, but the work was begun with tosica "
            f"{content['tosica']}: install the same version on all workers."
        )
    settings = Settings(**{field.name: content[field.name] for field in fields(Settings)})
    path, n_obs, query, model = (content[name] for name in ("path", "n_obs", "query", "model"))
    return Plan(folder, path, n_obs, query, model, settings)
