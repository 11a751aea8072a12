"""Old name of the class that annotates, for the types of other classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tosica.model._annotation import AnnotationMixin as InferenceMixin
else:
    InferenceMixin = object
