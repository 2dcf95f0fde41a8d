"""A DataFrame becomes a log; the job is run twice, and takes effect once.

Prints:
    1000 records
    1000 records
    whole: True
"""

import sys
import tempfile

from cordwood import sync
from cordwood.spark import session


def main(directory: str) -> None:
    """Work in this directory."""
    log = sync.Log(f"file://{directory}", "numbers")
    frame = session().range(1000).selectExpr("to_json(struct(*)) AS body")
    for _ in range(2):
        (
            frame.write.format("cordwood")
            .mode("append")
            .option("txnAppId", "numbers-of-today")  # the same job, whoever runs it again
            .option("txnVersion", 1)
            .save(log.url)
        )
        print(log.state().records, "records")
    print("whole:", log.scrub(deep=True).ok)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
