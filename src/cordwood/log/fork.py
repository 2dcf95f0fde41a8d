"""Fork: a log that begins as another one's past, without a copy.

::

    orders   [ 1 ──────────── 500 )[ 500 ─────────▶        the parent goes on
    trial    [ 1 ──────────── 500 )  [ 500 ───▶            and so does the fork, elsewhere
             └── files of orders ──┘  └ files of trial

The fork's manifest has the parent's pointers, and says up to which offset they lie under the
parent's name, as seen from the fork: `../orders`. Offsets and slots go on where the parent's ended.
A fork of a fork shares the files of both. The format is in docs/formats/log.md, section 9.

What is shared is held (log/holds.py), in every log that has a part of it, until the fork has
collected it or is gone. Four steps, none of which relies on time:

a. Create the fork's MANIFEST: *unborn*, without content, with a fresh incarnation. From now on
   holds in its name count.
b. Load the parent's manifest. Write a hold into the parent and each ancestor that is shared.
c. Read the parent's GARBAGE, then its MANIFEST: neither may be past what is shared. Else withdraw.
d. Give it the parent's streams (log/roll.py), and swap the unborn manifest for the finished one.

Why step c looks at the parent alone: a hold that stands when the parent is not yet past its start
was there before the parent was unlinked that far, so the parent's sweep sees it. An ancestor may
have gone far past it; there the files stay because the parent holds them, and it lets go of them
only after it has collected itself, which is after our own hold was written.

Crash anywhere before d, and an unborn log is left that nobody can use; to fork onto it again takes
it over by compare-and-swap, with another incarnation, and the holds of the old one count no more.
Of two that fork onto one name the later takes over and the earlier is told. An unborn manifest is
never deleted here: by the time the deletion arrives, it could be somebody's finished log.

The first fragment of a fork follows its *incarnation*, not the parent's newest fragment: so neither
log, nor an earlier log of the same name, has ever written anything that the fork could adopt.
"""

from __future__ import annotations

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    ContendedError,
    CorruptionError,
    NotFoundError,
    StateError,
)
from cordwood.log import paths, tree
from cordwood.log.chain.document import Shards
from cordwood.log.cut import Cut, cut_for, first_wanted
from cordwood.log.format import FORK, ZERO, Ancestor, Extension, Manifest, encode
from cordwood.log.holds import ForkRecord, prove_not_collected
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import check_has_tail, tail_of
from cordwood.log.roll import bequeath
from cordwood.log.tag import WriterTag

TRIES_MAX = 5
"""Times a fork from the oldest record on begins again because that was collected under it."""


async def fork(
    parent: LogObjects, child: LogObjects, entropy: Entropy, start: int | None = None
) -> None:
    """Make `child` a fork of `parent`, from `start` (rounded down to a fragment) on.

    Two PUTs, one more for each log that is shared, and four GETs; with `start` a few more for
    each level of the tree.

    Raises:
        AlreadyExistsError: there is a log of the child's name.
        CollectedError: `start` has been collected, or is about to be.
        ContendedError: somebody else forks onto the same name.
        InvalidInputError: there is no such offset.
        StateError: the parent is being destroyed, or has a root of another program's that cannot be
            written again.
    """
    manifest, _ = await parent.load()
    _check_lives(parent.name, manifest)
    check_has_tail(parent.name, manifest)
    first_wanted(parent.name, manifest, start)
    etag = ""
    for _ in range(TRIES_MAX):
        incarnation = entropy.token()
        etag = await _begin(child, incarnation, etag, entropy, manifest.shards)
        try:
            finished = await _share(parent, child, incarnation, start, entropy)
        except CollectedError:
            if start is not None:
                raise
            continue
        await bequeath(parent, child, incarnation, entropy)
        await _swap(child, finished, etag)
        return
    raise StateError(
        f"log {parent.name!r} was collected under the fork again and again",
        hint="give the fork a start that a cursor or a pin holds",
    )


async def _begin(
    child: LogObjects, incarnation: str, etag: str, entropy: Entropy, shards: Shards | None
) -> str:
    """Step a: an unborn log of this incarnation, of its parent's kind; the etag of its manifest.

    `etag` names our own earlier one. Without it, one that somebody left is taken over.
    """
    unborn = Manifest(
        setsum_hex=ZERO,
        acc_bytes=0,
        writer=str(WriterTag(incarnation, entropy.token(), incarnation, 0)),
        nodes=(),
        fragments=(),
        cordwood=Extension(features=(FORK,), fork=()),
    )
    if etag:
        return await _swap(child, unborn, etag)
    try:
        return await child.create(unborn, shards)
    except AlreadyExistsError:
        there, etag = await child.look()
        if not there.is_unborn:
            raise AlreadyExistsError(
                f"the log {child.name!r} exists already", hint="fork onto another name"
            ) from None
    return await _swap(child, unborn, etag)


async def _swap(child: LogObjects, manifest: Manifest, etag: str) -> str:
    try:
        return await child.swap(manifest, etag)
    except ContendedError as error:
        raise ContendedError(
            f"somebody else forks onto {child.name!r} at the same time",
            hint="wait until it is done, or use another name",
        ) from error


async def _share(
    parent: LogObjects, child: LogObjects, incarnation: str, start: int | None, entropy: Entropy
) -> Manifest:
    """Steps b and c: the finished manifest, with everything it names held."""
    manifest, _ = await parent.load()
    _check_lives(parent.name, manifest)
    tag = WriterTag(incarnation, entropy.token(), incarnation, 0)
    try:
        cut = await cut_for(parent, manifest, start, child, str(tag))
    except CorruptionError as error:
        if error.code is Code.MISSING_OBJECT:
            # Of a log that was collected while we read it, that is to be expected.
            await prove_not_collected(parent, first_wanted(parent.name, manifest, start))
        raise
    tag = tag._replace(tail_us=(await tail_of(parent, manifest)).at_us)
    ancestors = _ancestors(parent, child, manifest, cut.first_to_keep)
    keys = []
    for ancestor in ancestors if cut.kept else ():
        name = child.name_of(ancestor)
        keys.append(f"{name}/{paths.fork(incarnation)}")
        record = _record(paths.relative_name(name, child.name), cut, ancestor, entropy)
        await child.store.put(keys[-1], encode(record, keys[-1]), "create")
    try:
        _check_same(parent.name, manifest, await prove_not_collected(parent, cut.first_to_keep))
    except (CollectedError, NotFoundError, StateError):
        await child.store.delete(keys)
        raise
    place = cut.first_to_keep, cut.first_seq_no
    return tree.heir(manifest, cut.kept, *place, tag, ancestors)


def _ancestors(
    parent: LogObjects, child: LogObjects, manifest: Manifest, oldest: int
) -> tuple[Ancestor, ...]:
    """Whose files the child shares from `oldest` on, by the names that it has for them."""
    above = [(parent.name_of(a), a.limit, a.seq_no) for a in manifest.ancestors if a.limit > oldest]
    itself = (parent.name, manifest.next_offset, manifest.next_seq_no)
    return tuple(
        Ancestor(paths.relative_name(child.name, name), limit, seq_no)
        for name, limit, seq_no in (*above, itself)
    )


def _record(child: str, cut: Cut, ancestor: Ancestor, entropy: Entropy) -> ForkRecord:
    """What a fork holds of one log.

    From its own start on, also where older files lie elsewhere: nodes over those may lie here.
    """
    return ForkRecord(
        log=child,
        start=cut.first_to_keep,
        limit=ancestor.limit,
        first_seq_no=cut.first_seq_no,
        limit_seq_no=ancestor.seq_no,
        writer=f"cordwood/1 write={entropy.token()}",
    )


def _check_lives(name: str, manifest: Manifest) -> None:
    if manifest.seal is not None and manifest.seal.is_destruction:
        raise StateError(
            f"log {name!r} is being destroyed, so it cannot be forked",
            hint="nothing of it can be kept any more",
        )


def _check_same(name: str, before: Manifest, after: Manifest) -> None:
    """Raise if the parent is not the log that it was: destroyed, and made anew."""
    tags = WriterTag.parse(before.writer), WriterTag.parse(after.writer)
    if tags[0] and tags[1] and tags[0].incarnation != tags[1].incarnation:
        raise StateError(f"the log {name!r} was destroyed while it was forked")
