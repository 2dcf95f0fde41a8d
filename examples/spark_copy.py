"""Copy one log to another with a streaming query that can be killed and started again.

    python examples/spark_copy.py file:///data/wood/orders file:///data/wood/copy /data/checkpoint

Run it as often as you like: each run copies what is new, once.
"""

from __future__ import annotations

import sys

from cordwood.spark import session


def main(source: str, target: str, checkpoint: str) -> None:
    """Copy what is new."""
    spark = session()
    query = (
        spark.readStream.format("cordwood")
        .option("cursor", "copy")  # what is not copied yet is not collected
        .option("maxRecordsPerTrigger", 100_000)
        .load(source)
        .drop("offset", "timestamp")  # the new log gives its own
        .writeStream.format("cordwood")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    for progress in query.recentProgress:
        print(f"batch {progress['batchId']}: {progress['numInputRows']} records")


if __name__ == "__main__":
    main(*sys.argv[1:4])
