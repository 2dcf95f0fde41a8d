"""Append records, read them, prove them.

    python examples/append.py file:///data/wood/orders

It makes the log, and prints what it reads.
"""

from __future__ import annotations

import sys

from cordwood import sync


def main(url: str) -> None:
    """Make a log at this URL, and use it."""
    log = sync.Log.from_url(url)
    log.create()
    with log.writer() as writer:
        first = writer.append(b'{"order": 1}')  # returns when it is durable
        second = writer.append(b'{"order": 2}')
    print(f"appended at {first} and {second}")
    with log.reader() as reader:
        for record in reader.read():
            print(record.offset, record.body.decode())
    print("whole:", log.scrub(deep=True).ok)


if __name__ == "__main__":
    main(sys.argv[1])
