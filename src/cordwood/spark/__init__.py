"""How does Spark read and write logs, and do the heavy work? The data source and an engine.

Importing this loads neither pyspark nor a JVM; that happens when something is used.
"""

from cordwood.spark.session import missing, session

__all__ = ["missing", "session"]
