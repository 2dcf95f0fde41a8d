"""Append records, read them, prove them.

Prints:
    appended at 1 and 2
    1 {"order": 1}
    2 {"order": 2}
    whole: True
"""

import sys
import tempfile

from cordwood import sync


def main(directory: str) -> None:
    """Work in this directory."""
    log = sync.Log(f"file://{directory}", "orders")
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
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
