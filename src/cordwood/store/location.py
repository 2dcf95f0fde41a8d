"""Where a store is, read from its URL. Pure text: nothing here touches a store.

====================  =========================================================
`memory:`             a fresh store in this process, with a name nobody else has
`memory:name`         the store of that name in this process
`file:///dir`         a local directory; percent-encoding as in any URL
`/dir`, `dir`, `~/x`  the same, as a path
`s3://bucket/prefix`  Amazon S3 and what speaks its protocol
`gs://bucket/prefix`  Google Cloud Storage
`az://box/prefix`     a container of Azure Blob Storage
====================  =========================================================

A location's `url` is its normal form: `Store(store.url)` names the same place again. Credentials
never belong in a URL and are refused there, so a URL may be printed and logged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote, unquote_to_bytes, urlsplit

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import InvalidInputError
from cordwood.store.api import check_key

REMOTE_SCHEMES = frozenset({"s3", "gs", "az"})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_KNOWN = "memory:name, file:///dir, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed URL."""

    scheme: str
    url: str
    name: str
    """The memory store's name, the directory's absolute path, or the bucket or container."""
    prefix: str = ""
    """The key prefix inside a bucket, without slashes at its ends."""


def parse_location(place: object, entropy: Entropy = SYSTEM_ENTROPY) -> Location:
    """The place that a URL or a path names, whatever it is that was given as one.

    Raises:
        InvalidInputError: it names none that we know.
    """
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else place
    if not isinstance(text, str):
        raise InvalidInputError(
            f"a store is named by a text or a path, not by a {type(place).__name__}",
            hint=f"use {_KNOWN}",
        )
    matched = _SCHEME.match(text)
    if matched is None:
        return _directory(text, os.path.expanduser(text))
    scheme, rest = matched[1].lower(), text[matched.end() :]
    if scheme == "memory":
        return _memory(text, rest, entropy)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            _refuse(text, "write file:///absolute/path, with three slashes, or a plain path")
        if parts.query or parts.fragment:
            _refuse(text, "write '?' and '#' in a file name as %3F and %23")
        return _directory(text, os.fsdecode(unquote_to_bytes(parts.path)))
    if scheme in REMOTE_SCHEMES:
        return _bucket(text, scheme, rest)
    return _refuse(text, f"use {_KNOWN}; a path with a colon needs ./ in front")


def _memory(text: str, name: str, entropy: Entropy) -> Location:
    if not name:
        name = f"~{entropy.token()[:16]}"
    if not name.isprintable() or "/" in name:
        _refuse(text, "a memory store's name is printable text without slashes")
    return Location("memory", f"memory:{name}", name)


def _directory(text: str, path: str) -> Location:
    if not path or "\0" in path:
        _refuse(text, f"use a path, or {_KNOWN}")
    # Two slashes in front would stay two, and be a root of their own, which nothing is below.
    absolute = os.path.abspath(path)
    absolute = os.sep + absolute.lstrip(os.sep) if os.sep == "/" else absolute
    if absolute == os.path.abspath(os.sep):
        _refuse(text, "a store needs a directory of its own")
    return Location("file", f"file://{quote(os.fsencode(absolute))}", absolute)


def _bucket(text: str, scheme: str, rest: str) -> Location:
    if not rest.startswith("//"):
        _refuse(text, f"write {scheme}://bucket/prefix")
    bucket, _, prefix = rest[2:].partition("/")
    if "@" in bucket or "?" in rest or "#" in rest:
        _refuse("", "credentials and settings are keyword options, not part of the URL")
    if not _BUCKET.fullmatch(bucket):
        _refuse(text, f"write {scheme}://bucket/prefix")
    prefix = prefix.rstrip("/")
    if prefix:
        check_key(prefix)
    return Location(scheme, f"{scheme}://{bucket}/{prefix}".rstrip("/"), bucket, prefix)


def _refuse(text: str, hint: str) -> NoReturn:
    message = f"store URL {text!r} is not one" if text else "this is not a store URL"
    raise InvalidInputError(message, hint=hint)
