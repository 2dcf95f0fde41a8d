"""The verifier of a collection: what goes, what stays, and whether both add up.

A chain log is collected in four steps::

    list      cursors and manifest ─▶ GARBAGE, `listed`: every file that goes
    verify    all of it looked at again ─▶ what goes and what stays, each with its setsum; an alarm
              if too much goes ─▶ snapshot/MANIFEST.<setsum> ─▶ GARBAGE, `marked`
    unlink    the writer finds the new beginning, and leaves the rest out of its next manifest
    sweep     a grace interval later, when no manifest names them, the files go, slowly

The last two are those of a cas log (log/collect.py). The setsum in the name is that of all that was
ever collected once this is: what lies before the new beginning.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CorruptionError,
    NotFoundError,
    StateError,
)
from cordwood.base.setsum import Setsum
from cordwood.log import tree
from cordwood.log.chain import names
from cordwood.log.cursors import Cursors
from cordwood.log.format import FORMAT, ZERO, Manifest, NodePointer, decode, encode
from cordwood.log.garbage import Garbage, apply
from cordwood.log.objects import LogObjects


class Prefix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object snapshot/MANIFEST.<setsum>: how the log begins after a collection."""

    format: int = FORMAT
    setsum: str
    """Of what stays of the log that was collected."""
    discarded: str
    """Of what goes."""
    first_to_keep: int
    node: NodePointer | None = None
    """What takes the place of a node that is cut in two."""

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        try:
            Setsum.sum([self.setsum, self.discarded])
        except ValueError as error:
            raise CorruptionError(f"{where}: {error}", where=where) from error
        if self.format != FORMAT or self.first_to_keep < 1:
            raise CorruptionError(f"{where}: not a beginning of a log", where=where)


class Verdict(Struct, frozen=True):
    """What the verifier found."""

    name: str
    """The setsum that names the new beginning."""

    erase: str
    """The setsum of what goes."""
    keep: str
    """The setsum of what stays."""
    share: float
    """Of the bytes, how much goes."""


async def verify(objects: LogObjects, cursors: Cursors, garbage: Garbage, max_share: float) -> str:
    """Look at everything again, and offer the new beginning: the setsum that names it.

    Empty if a cursor speaks against it, or the log has changed so that it does not fit any more.

    Raises:
        StateError: more than `max_share` of the log's bytes would go.
        CorruptionError: what goes and what stays do not add up to what the log holds.
    """
    manifest, _ = await objects.load()
    positions = [witness.offset for witness in (await cursors.list()).values()]
    if not positions or min(positions) < garbage.first_to_keep.offset:
        return ""
    verdict = judge_garbage(objects.name, manifest, garbage)
    if verdict is None:
        return ""
    check_alarm(verdict, max_share)
    await write_prefix(objects, verdict, garbage)
    return verdict.name


def judge_garbage(log: str, manifest: Manifest, garbage: Garbage) -> Verdict | None:
    """What goes and what stays if this is taken out of the manifest; None if it does not fit.

    Raises:
        CorruptionError: the two do not add up to what the log holds.
    """
    smaller = apply(manifest, garbage)
    if smaller is None:
        return None
    live = Setsum.sum([p.setsum_hex for p in tree.roots(manifest)] or [ZERO])
    keep = Setsum.sum([p.setsum_hex for p in tree.roots(smaller)] or [ZERO])
    erase = Setsum.from_hex(garbage.discard_hex)
    if keep + erase != live or smaller.setsum_hex != manifest.setsum_hex:
        raise CorruptionError(
            f"log {log!r}: what would be collected does not balance",
            code=Code.SETSUM_MISMATCH,
            hint="run `cordwood log scrub`; nothing was changed",
        )
    total = sum(p.num_bytes for p in tree.roots(manifest))
    kept = sum(p.num_bytes for p in tree.roots(smaller))
    share = (total - kept) / total if total else 0.0
    return Verdict(smaller.collected_hex, erase.hexdigest(), keep.hexdigest(), share)


def check_alarm(verdict: Verdict, max_share: float) -> None:
    """Raise if too much goes."""
    if verdict.share > max_share:
        raise StateError(
            f"{verdict.share:.0%} of the log's bytes would go, the limit is {max_share:.0%}",
            code=Code.LIMIT,
            hint="raise the limit if that is what you want",
        )


async def write_prefix(objects: LogObjects, verdict: Verdict, garbage: Garbage) -> None:
    """Offer the new beginning. One PUT; a few more if a collection that was given up left one.

    Only what is listed is being collected now, so nobody relies on that.
    """
    wanted = _prefix(verdict.keep, garbage)
    key = objects.key(names.prefix(verdict.name))
    while await _load(objects, verdict.name) != wanted:
        with suppress(AlreadyExistsError):
            await objects.plain.put(key, encode(wanted, key), "create")
            return
        await objects.plain.delete([key])


async def is_offered(objects: LogObjects, garbage: Garbage) -> bool:
    """Whether the beginning that a garbage leaves is offered: what a writer asks before it acts."""
    there = await _load(objects, garbage.prefix)
    return there is not None and there == _prefix(there.setsum, garbage)


def _prefix(keep: str, garbage: Garbage) -> Prefix:
    return Prefix(
        setsum=keep,
        discarded=garbage.discard_hex,
        first_to_keep=garbage.first_to_keep.offset,
        node=garbage.node_for_root,
    )


async def _load(objects: LogObjects, name: str) -> Prefix | None:
    key = objects.key(names.prefix(name))
    try:
        data, _ = await objects.plain.get(key)
    except NotFoundError:
        return None
    return decode(Prefix, data, key)
