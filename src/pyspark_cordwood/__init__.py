"""Found by Spark by its name: makes `format("cordwood")` known without a register call."""

from cordwood.spark.source import CordwoodSource as DefaultSource

__all__ = ["DefaultSource"]
