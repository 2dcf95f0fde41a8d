"""How does Spark read and write logs, and do the heavy work? The data source and an engine."""
