"""A log as a DataFrame.

    python examples/spark_read.py file:///data/wood/events

It makes the log, fills it with a thousand events, and prints what queries find in it.
"""

from __future__ import annotations

import json
import sys

from cordwood import sync
from cordwood.spark import read_log, session

COLOURS = ("red", "green", "blue")


def main(url: str) -> None:
    """Make a log at this URL, and use it."""
    log = sync.Log.from_url(url)
    log.create()
    events = [json.dumps({"colour": COLOURS[n % 3]}).encode() for n in range(1000)]
    with log.writer() as writer:
        for start in range(0, 1000, 250):
            writer.append_many(events[start : start + 250])

    spark = session()
    frame = spark.read.format("cordwood").load(log.url)
    colours = frame.selectExpr("get_json_object(cast(body AS STRING), '$.colour') AS colour")
    counts = {row["colour"]: row["count"] for row in colours.groupBy("colour").count().collect()}
    for colour in COLOURS:
        print(colour, counts[colour])

    # Only offsets are asked for, so no body is read.
    offsets = read_log(spark, log.url, columns=["offset"], start=501)
    least, most = offsets.selectExpr("min(offset)", "max(offset)").first()
    print(f"offsets {least} to {most}")

    # What the manifest says, without reading any record.
    files = spark.read.format("cordwood").option("view", "fragments").load(log.url)
    records, count = files.selectExpr("sum(records)", "count(*)").first()
    print(f"{records} records in {count} files")


if __name__ == "__main__":
    main(sys.argv[1])
