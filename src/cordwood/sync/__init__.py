"""Blocking twins of the async classes, with the same names: for scripts, notebooks, Spark tasks.

Store, Options, Limits, Setsum, Token, Witness and the errors are the same objects as in `cordwood`.
"""

from cordwood.base.setsum import Setsum
from cordwood.log.bulk import Committed, Staged, Token
from cordwood.log.cursors import Witness
from cordwood.log.options import Options
from cordwood.log.reader import Limits
from cordwood.log.records import Record
from cordwood.store.url import Store
from cordwood.sync.fleet import Fleet, members, survey
from cordwood.sync.log import Cursors, Log, Pin, Reader, Writer

__all__ = [
    "Committed",
    "Cursors",
    "Fleet",
    "Limits",
    "Log",
    "Options",
    "Pin",
    "Reader",
    "Record",
    "Setsum",
    "Staged",
    "Store",
    "Token",
    "Witness",
    "Writer",
    "members",
    "survey",
]
