"""The collections that are downloaded: which file of which release of MSigDB each of them is.

MSigDB's files lie at `<server>/<version>.<species>/<file>.v<version>.<species>.symbols.gmt`.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

SERVER: Final = "https://data.broadinstitute.org/gsea-msigdb/msigdb/release"
# Releases that have all of the files, and the one that is taken if none is named.
VERSIONS: Final = ("2022.1", "2023.1", "2023.2", "2024.1", "2025.1")
DEFAULT_VERSION: Final = "2024.1"

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


class MSigDBFile(NamedTuple):
    """One collection: the file's name without version, what it is, and what to cite."""

    file: str
    species: str
    source: str
    citation: tuple[str, ...]

    def path(self, version: str) -> str:
        """Path of the file below the server, and below the cache."""
        release = f"{version}.{self.species}"
        return f"{release}/{self.file}.v{release}.symbols.gmt"

    def url(self, version: str) -> str:
        """Where the file is downloaded from; ``TOSICA_MSIGDB_URL`` names a mirror."""
        server = os.environ.get("TOSICA_MSIGDB_URL") or SERVER
        return f"{server.rstrip('/')}/{self.path(version)}"

    def metadata(self, version: str) -> dict[str, Any]:
        """What the JSON file beside a collection inside the wheel holds."""
        return {
            "source": self.source,
            "release": f"MSigDB {version}.{self.species}",
            "version": version,
            "licence": "CC BY 4.0",
            "organism": {"Hs": "Homo sapiens", "Mm": "Mus musculus"}[self.species],
            "identifier": "gene symbol",
            "url": self.url(version),
            "citation": [*self.citation],
        }


MSIGDB: Final = {
    "human_reactome": MSigDBFile(
        "c2.cp.reactome", "Hs", "MSigDB C2, Reactome pathways", (_SUBRAMANIAN, _REACTOME)
    ),
    "human_immune": MSigDBFile(
        "c7.all", "Hs", "MSigDB C7, immunologic signatures", (_SUBRAMANIAN, _IMMUNE)
    ),
    "human_tf": MSigDBFile(
        "c3.tft", "Hs", "MSigDB C3, transcription factor targets", (_SUBRAMANIAN,)
    ),
    "human_hallmark": MSigDBFile("h.all", "Hs", "MSigDB H, hallmarks", (_SUBRAMANIAN, _LIBERZON)),
    "human_celltype": MSigDBFile("c8.all", "Hs", "MSigDB C8, cell types", (_SUBRAMANIAN,)),
    "mouse_reactome": MSigDBFile(
        "m2.cp.reactome", "Mm", "MSigDB M2, Reactome pathways", (_CASTANZA, _REACTOME)
    ),
    "mouse_tf": MSigDBFile(
        "m3.gtrd", "Mm", "MSigDB M3, transcription factor targets", (_CASTANZA,)
    ),
    "mouse_hallmark": MSigDBFile("mh.all", "Mm", "MSigDB MH, hallmarks", (_CASTANZA, _LIBERZON)),
    "mouse_celltype": MSigDBFile("m8.all", "Mm", "MSigDB M8, cell types", (_CASTANZA,)),
}
