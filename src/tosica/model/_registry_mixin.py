"""Old name of the class that knows what a reference is, for the types of other classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tosica.model._setup import SetupMixin as RegistryMixin
else:
    RegistryMixin = object
