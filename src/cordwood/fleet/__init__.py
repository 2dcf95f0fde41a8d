"""Many logs in one store: opened and closed cheaply, and found again when they need compaction."""
