"""A search index: segments of documents, and a ledger that says which of them count."""
