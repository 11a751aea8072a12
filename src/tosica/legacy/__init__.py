"""Read the folder that the original TOSICA code leaves after training, into plain data.

``_project`` reads the folder and checks that its files belong together; ``_tables`` reads its
tables and ``_weights`` its tensors. Nothing here knows the model: ``tosica.model._load_legacy``
builds it from a :class:`LegacyProject`.
"""

from tosica.legacy._project import LegacyProject, read_project

__all__ = ["LegacyProject", "read_project"]
