"""Local durable appends: files of checksummed frames, and what is left of them after a crash."""
