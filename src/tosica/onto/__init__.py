"""Terms of the Cell Ontology for labels, and what is above and below a term."""

from tosica.onto._ontology import ancestors, descendants, map_labels, term_name

__all__ = ["ancestors", "descendants", "map_labels", "term_name"]
