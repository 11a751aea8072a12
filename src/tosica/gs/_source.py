"""What a source of gene set collections provides, be it the package itself or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Source(Protocol):
    """Named collections of gene sets from one origin.

    A new origin takes a class with these members, in a file of its own, and an entry in
    ``tosica.gs._collections.SOURCES``. Collections on a server are best downloaded by
    ``tosica.gs._download.fetch_gmt``, which checks and caches them.
    """

    @property
    def names(self) -> Sequence[str]:
        """Names of the collections. They differ from those of all other sources."""

    def versions(self, name: str) -> Sequence[str]:
        """Versions of a collection that can be loaded."""

    def default_version(self, name: str) -> str:
        """Version that is loaded if the user names none."""

    def describe(self, name: str, version: str) -> dict[str, Any]:
        """Metadata of a collection, found without downloading it.

        Needed are the keys ``source``, ``release``, ``version``, ``licence``, ``organism`` (the
        scientific name), ``identifier``, ``url``, ``citation`` (a list), ``n_sets`` and
        ``n_genes`` (``pandas.NA`` before the download). ``available`` is True and ``date`` empty if
        they are left out.
        """

    def load(self, name: str, version: str) -> dict[str, list[str]]:
        """Gene set name to genes, as new lists that the caller may change."""
