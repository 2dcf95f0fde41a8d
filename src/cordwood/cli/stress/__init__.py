"""`cordwood log stress`: a log under load, watched by readers who know what must be in it.

::

    writers     generate streams of records, some popular, some not; told what is durable
    readers     generate the same streams, and compare every record
    collector   moves a cursor and collects; before it reveals a garbage it writes down where the
                generators stand behind it, under the setsum of everything collected

Anything but a one-to-one mapping of records appended to records read is a violation: lost, doubled,
out of order, changed. Writers and the collector may be processes, which can be killed at any time.
"""

from cordwood.cli.stress.commands import stress

__all__ = ["stress"]
