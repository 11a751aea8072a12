"""Share models through the Hugging Face Hub, with a card that says what they are."""

from tosica.hub._card import make_card
from tosica.hub._huggingface import pull, push

__all__ = ["make_card", "pull", "push"]
