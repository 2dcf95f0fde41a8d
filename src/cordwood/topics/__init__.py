"""Topics: named partitions of keyed records, in a local directory or on an object store."""
