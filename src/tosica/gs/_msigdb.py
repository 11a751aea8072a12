"""Gene set collections of MSigDB, downloaded from its server.

URLs of its files are `<server>/<version>.<species>/<file>.v<version>.<species>.symbols.gmt`.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from tosica.gs._download import describe_cached, fetch_gmt

_SERVER: Final = "https://data.broadinstitute.org/gsea-msigdb/msigdb/release"
# Releases that have all files below.
_VERSIONS: Final = ("2022.1", "2023.1", "2023.2", "2024.1", "2025.1")
_DEFAULT_VERSION: Final = "2024.1"
_ORGANISMS: Final = {"Hs": "Homo sapiens", "Mm": "Mus musculus"}

_SUBRAMANIAN = (
    "Subramanian et al. Gene set enrichment analysis: a knowledge-based approach for interpreting "
    "genome-wide expression profiles. PNAS 102, 15545-15550 (2005), doi:10.1073/pnas.0506580102"
)
_LIBERZON = (
    "Liberzon et al. The Molecular Signatures Database hallmark gene set collection. Cell Systems "
    "1, 417-425 (2015), doi:10.1016/j.cels.2015.12.004"
)
_CASTANZA = (
    "Castanza et al. Extending support for mouse data in the Molecular Signatures Database "
    "(MSigDB). Nature Methods 20, 1619-1620 (2023), doi:10.1038/s41592-023-02014-7"
)
_REACTOME = (
    "Milacic et al. The Reactome Pathway Knowledgebase 2024. Nucleic Acids Research 52, D672-D678 "
    "(2024), doi:10.1093/nar/gkad1025"
)
_IMMUNE = (
    "Godec et al. Compendium of immune signatures identifies conserved and species-specific "
    "biology in response to inflammation. Immunity 44, 194-206 (2016), "
    "doi:10.1016/j.immuni.2015.12.006"
)


class _File(NamedTuple):
    """One file of MSigDB: its name without the version, its content, and what to cite."""

    file: str
    species: str
    source: str
    citation: tuple[str, ...]

    def release(self, version: str) -> str:
        return f"{version}.{self.species}"

    def path(self, version: str) -> str:
        """Path of the file on the server, and in the cache."""
        release = self.release(version)
        return f"{release}/{self.file}.v{release}.symbols.gmt"


_FILES: Final = {
    "human_reactome": _File(
        "c2.cp.reactome", "Hs", "MSigDB C2, Reactome pathways", (_SUBRAMANIAN, _REACTOME)
    ),
    "human_immune": _File(
        "c7.all", "Hs", "MSigDB C7, immunologic signatures", (_SUBRAMANIAN, _IMMUNE)
    ),
    "human_tf": _File("c3.tft", "Hs", "MSigDB C3, transcription factor targets", (_SUBRAMANIAN,)),
    "human_hallmark": _File("h.all", "Hs", "MSigDB H, hallmarks", (_SUBRAMANIAN, _LIBERZON)),
    "human_celltype": _File("c8.all", "Hs", "MSigDB C8, cell types", (_SUBRAMANIAN,)),
    "mouse_reactome": _File(
        "m2.cp.reactome", "Mm", "MSigDB M2, Reactome pathways", (_CASTANZA, _REACTOME)
    ),
    "mouse_tf": _File("m3.gtrd", "Mm", "MSigDB M3, transcription factor targets", (_CASTANZA,)),
    "mouse_hallmark": _File("mh.all", "Mm", "MSigDB MH, hallmarks", (_CASTANZA, _LIBERZON)),
    "mouse_celltype": _File("m8.all", "Mm", "MSigDB M8, cell types", (_CASTANZA,)),
}


class MSigDB:
    """The collections of MSigDB. ``TOSICA_MSIGDB_URL`` names a mirror of its server."""

    names: Final = tuple(_FILES)

    def versions(self, name: str) -> tuple[str, ...]:
        return _VERSIONS

    def default_version(self, name: str) -> str:
        return _DEFAULT_VERSION

    def describe(self, name: str, version: str) -> dict[str, Any]:
        file = _FILES[name]
        return {
            "source": file.source,
            "release": f"MSigDB {file.release(version)}",
            "version": version,
            "licence": "CC BY 4.0",
            "organism": _ORGANISMS[file.species],
            "identifier": "gene symbol",
            "url": _url(file.path(version)),
            "citation": [*file.citation],
            **describe_cached(file.path(version)),
        }

    def load(self, name: str, version: str) -> dict[str, list[str]]:
        path = _FILES[name].path(version)
        return fetch_gmt(_url(path), path)


def _url(path: str) -> str:
    server = os.environ.get("TOSICA_MSIGDB_URL") or _SERVER
    return f"{server.rstrip('/')}/{path}"
