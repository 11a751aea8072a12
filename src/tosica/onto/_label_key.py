"""Spellings of the same label: one key for all of them."""

from __future__ import annotations

import re
import unicodedata

# Letters that names of cells are written with.
_GREEK = str.maketrans(
    {"α": " alpha ", "β": " beta ", "γ": " gamma ", "δ": " delta ", "ε": " epsilon "}
)
_DASHES = str.maketrans("‐‑‒–—−", "------")
# "CD4-CD8-": the first dash is a minus, too.
_MINUS_BEFORE_MARKER = re.compile(r"\b(CD\d+[A-Za-z]*)-(?=CD\d)", re.IGNORECASE)
_PLUS = re.compile(r"(?<=[^\W_])\(?\+\)?")
_MINUS = re.compile(r"(?<=[^\W_])(?:\(-\)|-(?=$|[\s,;/)]))")
_SEPARATORS = re.compile(r"[^\w/&]+|_")
_BRITISH = (("haem", "hem"), ("oesoph", "esoph"), ("tumour", "tumor"), ("foet", "fet"))


def label_key(text: str) -> str:
    """Bring a label or a name to a form that its other spellings have, too.

    These are case, plural, hyphens and punctuation, Greek letters, accents, British spelling, and
    "+" and "-" behind a marker for "positive" and "negative". A slash stays, because it joins
    different types.

    Parameters
    ----------
    text
        The label.

    Returns
    -------
    Words in small letters with one space between them.
    """
    text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    text = text.replace("Γ", "γ").replace("Δ", "δ").translate(_GREEK)
    text = unicodedata.normalize("NFKD", text)
    text = "".join(char for char in text if not unicodedata.combining(char))
    text = _MINUS_BEFORE_MARKER.sub(r"\1 negative ", text)
    text = _PLUS.sub(" positive ", text)
    text = _MINUS.sub(" negative ", text).lower()
    text = text.replace("/", " / ").replace("&", " & ")
    words = (_singular(word) for word in _SEPARATORS.sub(" ", text).split())
    key = " ".join(words)
    for british, american in _BRITISH:
        key = key.replace(british, american)
    return key


def _singular(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and word[-2] not in "siu"
    return word[:-1] if is_plural else word
