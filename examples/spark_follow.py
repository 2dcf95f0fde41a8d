"""A streaming query that copies a log, is stopped, and goes on where it ended.

Prints:
    copied 100 records
    copied 150 records
    the cursor stands at 151: what lies before it may be collected
"""

import sys
import tempfile

from cordwood import sync
from cordwood.spark import advance, session


def follow(source: sync.Log, target: sync.Log, checkpoint: str) -> None:
    """Copy what is there now. The checkpoint knows what was copied before."""
    query = (
        session()
        .readStream.format("cordwood")
        .option("cursor", "copy")  # holds back collection until a record is copied
        .option("maxRecordsPerTrigger", 40)
        .load(source.url)
        .select("body")
        .writeStream.format("cordwood")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target.url)
    )
    query.awaitTermination()
    advance(query)  # the cursor: Spark tells a source nothing of the last batch
    print(f"copied {target.state().records} records")


def main(directory: str) -> None:
    """Work in this directory."""
    source = sync.Log(f"file://{directory}/wood", "orders")
    target = sync.Log(f"file://{directory}/wood", "copy")
    source.create()
    for count in (100, 50):
        with source.writer() as writer:
            writer.append_many([b"order"] * count)
        follow(source, target, f"{directory}/checkpoint")
    offset = source.cursors.load("copy").offset
    print(f"the cursor stands at {offset}: what lies before it may be collected")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
