"""Found by Spark by its name: makes `format("cordwood_job")` known without a register call."""

from cordwood.spark.jobs import JobSource as DefaultSource

__all__ = ["DefaultSource"]
