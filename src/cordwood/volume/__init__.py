"""Pages with versions on an object store: snapshots, branches, tags, push and pull."""
