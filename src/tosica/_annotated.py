"""Old name of what is in ``tosica._obs``."""

from tosica._obs import (  # noqa: F401
    Kind,
    find_gene_sets,
    read_attention,
    resolve_key,
    result_type,
)
