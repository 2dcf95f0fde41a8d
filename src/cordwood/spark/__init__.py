"""How does Spark read and write logs, and do the heavy work? The data source and an engine.

Importing this loads neither pyspark nor a JVM; that happens when something is used.
"""

from cordwood.spark.session import missing, session
from cordwood.spark.tables import read_table

__all__ = ["missing", "read_table", "session"]
