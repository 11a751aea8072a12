"""The constraint of parameters that take a model."""

from tosica._checks import InstanceOf
from tosica.model._tosica import TOSICA

MODEL = InstanceOf("a TOSICA model, which tosica.TOSICA.load(folder) returns", TOSICA)
