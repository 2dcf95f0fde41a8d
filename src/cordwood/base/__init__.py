"""Values without storage: errors, numbers, time, ids, the setsum. Nothing here does I/O."""
