"""Objects by key with conditional put: the one thing the rest of Cordwood stands on.

====================  ==================================================================
`api.py`              the contract: six operations, four promises
`memory.py`           a dictionary; the reference
`directory.py`        a local directory: the async shell over `files.py`, which holds the
                      protocol of durable conditional puts and asks the OS through `disk.py`
`remote.py`           S3, Google Cloud Storage, Azure: the one user of the client library;
                      `answers.py` says what its failures mean
`retry.py`            repeats what may be repeated, resolves lost answers
`hedged.py`           asks twice where an answer is slow
`metered.py`          counts and times
`prefix.py`           a store seen from below one of its folders
`url.py`              `Store`: what users hold, by the URLs that `location.py` reads
`probe.py`            does this store keep its promises?
====================  ==================================================================

`keys.py`, `ranges.py` and `streams.py` are what several of them share.
"""
