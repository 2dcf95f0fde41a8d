"""One linearizable log on an object store: append, read, prove."""
