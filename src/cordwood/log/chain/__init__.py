"""The chain protocol: a log whose objects are only ever created, never replaced."""
