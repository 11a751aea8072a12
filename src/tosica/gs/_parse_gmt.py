"""From the bytes of a GMT file to gene sets: the one place that knows the format."""

from __future__ import annotations

import re

# How a saved login page, error page or XML error message of a download server begins.
WEB_PAGE = re.compile(r"\s*<(!doctype|!--|\?xml|html|head|body|title|script)\b", re.IGNORECASE)
GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_LINES_SHOWN = 5


class _Stripped(dict[str, str]):
    """Fields without the blanks around them.

    A gene is in dozens of sets: this strips it once, and one string object serves all of them.
    """

    def __missing__(self, field: str) -> str:
        self[field] = field.strip()
        return self[field]


def refuse_binary(data: bytes, source: str) -> None:
    """Raise a ValueError if `data`, a file or its beginning, cannot be GMT text."""
    if data.startswith(GZIP_MAGIC):
        msg = (
            f"{source} is gzip-compressed, but its name does not end in .gz; "
            "rename it so that it does."
        )
        raise ValueError(msg)
    if data.startswith(_UTF16_MARKS):
        raise ValueError(f"{source} is UTF-16 text; save it as UTF-8.")
    if b"\0" in data:
        raise ValueError(
            f"{source} is a binary file, not GMT text; check that it is the right file."
        )


def refuse_web_page(text: str, source: str) -> None:
    """Raise a ValueError if `text` begins as HTML or XML does."""
    if WEB_PAGE.match(text):
        msg = (
            f"{source} is a web page (HTML or XML), not a GMT file: a login or error page was "
            "probably saved in place of the download; fetch the file again."
        )
        raise ValueError(msg)


def parse_gmt(data: bytes, source: str) -> dict[str, list[str]]:
    """Turn the (uncompressed) bytes of a GMT file into gene sets.

    Parameters
    ----------
    data
        The whole file.
    source
        What to call the file in error messages, usually its path.

    Returns
    -------
    Gene set name to genes, both in the order of the file, each gene once a set.

    Raises
    ------
    ValueError
        If `data` is not whole GMT text.
    """
    refuse_binary(data, source)
    text = _decode(data, source)
    refuse_web_page(text, source)

    gene_sets: dict[str, list[str]] = {}
    lines_of: dict[str, list[int]] = {}
    stripped = _Stripped()
    # Not str.splitlines: it also cuts at characters that a name may hold.
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if not line or line.isspace():
            continue
        fields = line.split("\t")
        name = fields[0].strip()
        unique = dict.fromkeys(map(stripped.__getitem__, fields[2:]))
        unique.pop("", None)
        genes = list(unique)
        _check_line(name, genes, n_fields=len(fields), where=f"{source}, line {number}")
        lines_of.setdefault(name, []).append(number)
        gene_sets[name] = genes

    if not gene_sets:
        msg = (
            f"{source} is empty; a GMT file holds one gene set a line: its name, a description "
            "and its genes, separated by tabs."
        )
        raise ValueError(msg)
    for name, lines in lines_of.items():
        if len(lines) > 1:
            msg = (
                f"{source}: the gene set {name!r} is there more than once, on lines "
                f"{_enumerate(lines)}; names must be unique, so rename or remove the others."
            )
            raise ValueError(msg)
    return gene_sets


def _decode(data: bytes, source: str) -> str:
    """UTF-8 text without its byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from behind the byte order mark, if there was one.
        line = error.object.count(b"\n", 0, error.start) + 1
        msg = (
            f"{source}, line {line}: not UTF-8 text (byte 0x{error.object[error.start]:02x}); "
            "save the file as UTF-8, or check that it is a GMT file."
        )
        raise ValueError(msg) from error


def _check_line(name: str, genes: list[str], *, n_fields: int, where: str) -> None:
    """Raise a ValueError unless the line is a whole gene set."""
    if n_fields < 3:
        msg = (
            f"{where}: {n_fields} tab-separated field{'s' * (n_fields > 1)} where a GMT line has "
            "a name, a description and at least one gene; the line is truncated, or the file is "
            "not separated by tabs."
        )
        raise ValueError(msg)
    if not name:
        raise ValueError(f"{where}: the gene set has no name, its first field is empty; name it.")
    if not genes:
        raise ValueError(f"{where}: the gene set {name!r} holds no gene; add some or remove it.")


def _enumerate(lines: list[int]) -> str:
    """`3, 7 and 9`, cut short where a whole column repeats itself."""
    if len(lines) > _LINES_SHOWN:
        shown = ", ".join(str(line) for line in lines[:_LINES_SHOWN])
        return f"{shown} and {len(lines) - _LINES_SHOWN} more"
    return f"{', '.join(str(line) for line in lines[:-1])} and {lines[-1]}"
