"""Index a table of texts with Spark, and search it.

    python examples/spark_search.py texts.parquet file:///data/wood/index

The file has the columns `id` and `text`. Run it again and nothing is doubled: the build has a name
and a version.
"""

from __future__ import annotations

import sys

from cordwood import sync
from cordwood.spark import build_index, session


def main(path: str, place: str) -> None:
    """Build, then ask."""
    spark = session()
    index = sync.Index(place)
    index.create(exist_ok=True)
    texts = spark.read.parquet(path)
    report = build_index(spark, texts, place, build="texts", version=1)
    print("nothing new" if report.is_repeated else f"{report.documents} documents")
    for hit in index.search("quick NOT lazy", k=3):
        print(f"{hit.score:.2f}", hit.id.decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
