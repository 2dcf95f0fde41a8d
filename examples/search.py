"""Notes that can be searched as soon as they are durable.

    python examples/search.py file:///data/wood/notes

It makes the collection if it is not there, changes it, and asks it.
"""

from __future__ import annotations

import sys

from cordwood import sync


def main(url: str) -> None:
    """Make a collection at this URL, and use it."""
    with sync.Collection.from_url(url) as notes:
        notes.create(exist_ok=True)
        notes.update(b"monday", "Split the oak, stack it behind the barn.")
        notes.update(b"tuesday", "The oak is stacked; rain, so no splitting.")
        notes.update(b"sunday", "Nothing.")
        notes.delete(b"sunday")
        for hit in notes.search("oak AND (split* OR stack*)"):
            print(f"{hit.score:.2f}", hit.id.decode())
        print("waiting:", notes.state().waiting)
        report = notes.compact(engine="local")  # "spark" does the same, for more
        print("indexed:", report.documents, "still found:", sorted(notes.match("oak")))


if __name__ == "__main__":
    main(sys.argv[1])
