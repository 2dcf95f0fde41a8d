"""Found by Spark by its name: makes `format("cordwood")` known without a register call."""
