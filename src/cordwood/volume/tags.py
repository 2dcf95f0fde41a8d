"""Tags: names for logs, in the store. A volume's name is a tag; so is a branch's.

A tag says only which log is meant; versions are LSNs. It is created if nothing has the name,
replaced if it is still what was seen, or replaced by force. It takes no part in consistency: who
follows a tag that was moved finds another log, whole.
"""

from __future__ import annotations

from cordwood.base.errors import AlreadyExistsError, CollectedError, NotFoundError
from cordwood.volume import paths
from cordwood.volume.format import Tag
from cordwood.volume.history import History
from cordwood.volume.remote import LoadedTag, Remote


async def look_up(history: History, name: str) -> Tag:
    """Which log a name means now. One GET; what it says is written down for when we are offline.

    Raises:
        NotFoundError: nothing has that name.
    """
    tag = (await history.remote.get_tag(name)).tag
    history.keep_tag(name, tag)
    return tag


async def set_tag(
    remote: Remote,
    name: str,
    log: str,
    *,
    seen: LoadedTag | None = None,
    force: bool = False,
) -> None:
    """Let a name mean a log. The log is looked at before and after: it must not be going away.

    A GET, a PUT and a GET.

    Args:
        remote: the store.
        name: the name.
        log: the log.
        seen: what the name meant, to replace that and nothing else.
        force: replace whatever it means.

    Raises:
        AlreadyExistsError: the name means another log.
        ContendedError: it is not what was seen any more.
        CollectedError: the log is being deleted; the name was not given, or taken back.
        NotFoundError: there is no such log.
    """
    paths.check_name(name)
    await remote.claim(log)
    try:
        await remote.put_tag(name, log, seen, force=force)
    except AlreadyExistsError as error:
        try:
            if (await remote.get_tag(name)).tag.log == log:
                return
        except NotFoundError:
            pass
        raise AlreadyExistsError(
            f"{name!r} means another volume already",
            hint="choose another name, or pass force=True to move it",
        ) from error
    # Seen by a sweep from now on. One that looked before has said so in the manifest by now, or
    # will find that the manifest has changed.
    try:
        await remote.claim(log)
    except (CollectedError, NotFoundError):
        if not force and seen is None:
            await delete_tag(remote, name)
        raise


async def delete_tag(remote: Remote, name: str) -> None:
    """Take a name away. The log stays until a collection finds that nothing names it."""
    await remote.store.delete([paths.tag(name)])
