"""Check that links and anchors inside of built pages lead somewhere, and that nothing is fetched.

python scripts/check_links.py docs/_build/html
"""

from __future__ import annotations

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What a browser fetches by itself, by the attribute that names it.
FETCHED = {
    ("audio", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("link", "href"),
    ("script", "src"),
    ("source", "src"),
    ("video", "src"),
}
# Links of a page's head that name an address and fetch nothing.
NAMES = {"author", "canonical", "index", "license", "next", "prev", "search"}


class Page(HTMLParser):
    """Anchors and links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag defines and what it leads to."""
        attributes = {name: value for name, value in attrs if value is not None}
        self.anchors |= {
            attributes[name] for name in ("id", "name") if name in attributes
        }
        for name in ("href", "src"):
            if name not in attributes:
                continue
            self.links.append(attributes[name])
            if (tag, name) in FETCHED and attributes.get("rel") not in NAMES:
                self.fetched.append(attributes[name])


def find_faults(folder: Path) -> Iterator[str]:
    """Follow every link of every page in a folder."""
    # Beside the pages' own files, `_static` has templates of the theme.
    paths = [
        path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts
    ]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    if not pages:
        yield f"{folder} has no pages."
    for path, page in pages.items():
        name = path.relative_to(folder)
        for link in sorted(set(page.fetched)):
            if is_elsewhere(link):
                yield f"{name} fetches {link} from elsewhere."
        for link in sorted(set(page.links)):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (
                (path.parent / unquote(address.path)).resolve()
                if address.path
                else path
            )
            if not target.exists():
                yield f"{name} links to {link}, which does not exist."
            elif target in pages and unquote(address.fragment) not in pages[
                target
            ].anchors | {""}:
                yield f"{name} links to {link}, but that page has no such anchor."
    for path in sorted(folder.rglob("*.css")):
        for link in re.findall(
            r"(?:url\(|@import )\s*['\"]?([^'\")]+)", path.read_text("utf-8")
        ):
            if is_elsewhere(link):
                yield f"{path.relative_to(folder)} fetches {link} from elsewhere."


def is_elsewhere(link: str) -> bool:
    """Tell whether a link leads to another server."""
    return link.startswith(("http://", "https://", "//"))


def main(argv: Sequence[str] | None = None) -> None:
    """Print what leads nowhere, and fail if there is anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="built pages")
    folder = parser.parse_args(argv).folder.resolve()
    faults = list(find_faults(folder))
    if faults:
        sys.exit("\n".join(faults))
    print(
        "All links and anchors inside of the pages lead somewhere, and nothing is fetched."
    )


if __name__ == "__main__":
    main()
