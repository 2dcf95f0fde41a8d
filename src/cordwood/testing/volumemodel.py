"""What the local half of a volume must answer: every version in full, in plain dictionaries.

Pages are small and say who they are, so that a mixture of two versions shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.volume.local import Local
from cordwood.volume.overlay import View

PAGE_BYTES = 512
ZEROS = bytes(PAGE_BYTES)


def page_of(number: int, version: int) -> bytes:
    """A page that says which it is, and of which version."""
    return f"page {number} of version {version};".encode().ljust(PAGE_BYTES, b".")


def version_of(page: bytes) -> int:
    """Which version a page says it is of; 0 for zeros."""
    return 0 if page == ZEROS else int(page.split(b" ")[4].partition(b";")[0])


@dataclass(frozen=True)
class Version:
    """A volume at one time: pages that are missing are zeros."""

    pages: dict[int, bytes] = field(default_factory=dict)
    count: int = 0

    def read(self, number: int) -> bytes:
        """A page."""
        return self.pages.get(number, ZEROS) if number <= self.count else ZEROS

    def changed(self, pages: dict[int, bytes], count: int, cut: int | None) -> Version:
        """After a commit that made it as short as `cut` in between."""
        smallest = min(self.count, count, count if cut is None else cut)
        kept = {number: page for number, page in self.pages.items() if number <= smallest}
        return Version(kept | pages, count)

    def same_as(self, other: Version) -> bool:
        """Whether all pages are the same."""
        longest = range(1, max(self.count, other.count) + 1)
        return self.count == other.count and all(
            self.read(number) == other.read(number) for number in longest
        )


def seen(view: View, published: dict[int, Version]) -> Version:
    """All that a snapshot shows, over the published versions."""
    below = published[view.lsn]
    pages = {}
    for number in range(1, view.page_count + 1):
        found = view.read(number)
        pages[number] = below.read(number) if found is None else bytes(found)
    return Version(pages, view.page_count)


def pushed(view: View, published: dict[int, Version]) -> Version:
    """What a push of a snapshot makes of the published version below, by the overlay alone."""
    numbers, _ = view.overlay()
    pages = {}
    for number in numbers.tolist():
        page = view.read(number)
        assert page is not None
        pages[number] = bytes(page)
    return published[view.lsn].changed(pages, view.page_count, view.cut)


def commit(local: Local, pages: dict[int, bytes], count: int, cut: int | None = None) -> int:
    """One transaction on the newest state; its entry."""
    with local.snapshot() as view:
        return local.begin(view).commit(pages, count, cut)
