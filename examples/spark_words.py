"""Count words in a log's records, on Spark, and append the counts to another log.

    python examples/spark_words.py file:///data/wood/lines file:///data/wood/words

The result is appended as one atomic commit, sorted by word.
"""

from __future__ import annotations

import sys

from cordwood.spark import read_log, session


def main(source: str, target: str) -> None:
    """Count, and append."""
    spark = session()
    lines = read_log(spark, source, columns=["body"])
    words = lines.selectExpr("explode(split(CAST(body AS STRING), ' ')) AS key")
    counts = words.groupBy("key").count().orderBy("key")
    rows = counts.selectExpr("key", "CAST(count AS STRING) AS body")
    rows.write.format("cordwood").mode("append").save(target)


if __name__ == "__main__":
    main(*sys.argv[1:3])
