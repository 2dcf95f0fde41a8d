"""What is done with logs, again and again: jobs of units, the engine that runs them, tables."""
