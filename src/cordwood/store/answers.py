"""What a remote store's failure means: whether it may pass, and whether a write may have happened.

The client library reports most failures as one class with the facts in its text: the HTTP status,
or the stage at which the connection broke. This module reads them. It is pure, so every row of the
table below is a unit test; `store/remote.py` is where the failures come from.

=======================================  ==================  =========  =======
the store's answer                       our error           transient  applied
=======================================  ==================  =========  =======
412, or 409 "exists" from Azure: create  AlreadyExistsError
412 or 404: Match                        ContendedError
404: get, get_range, head                NotFoundError
other 409: "try again", says S3          StoreError          yes        may be
429: too many requests                   StoreError          yes        no
408, 500 and above                       StoreError          yes        may be
401, 403, no credentials                 store_denied        no         no
no such bucket or container              StoreError          no         no
501: no conditional puts; no etag given  store_unsafe        no         no
other 4xx                                StoreError          no         no
no connection could be made              store_unreachable   yes        no
time-out, reset, closed before answer    StoreError          yes        may be
anything we do not know                  StoreError          yes        may be
=======================================  ==================  =========  =======

The last row is the rule: what is not known to be harmless is in doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    CordwoodError,
    NotFoundError,
    StoreError,
)
from cordwood.store.api import Match, PutMode

_STATUS = re.compile(r"status code: (\d{3})")
_STAGE = re.compile(r"HttpError \{\s*kind: (\w+)")
_MESSAGE_CHARS_MAX = 400

_CREDENTIAL_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where cloud machines get credentials from: asked only when none were configured."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")

CREDENTIALS_HINT = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION), "
    "or give access_key_id= and secret_access_key=; profile files are not read",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or give service_account=",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, "
    "or give account_name= and account_key=",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts in one of the client library's errors."""

    kind: str
    """The name of its class."""
    text: str
    """What it says, without the debugging part."""
    status: int
    """The HTTP status; 0 if there was no answer."""
    stage: str
    """Where the connection broke, if it did: Connect, Timeout, Interrupted, Request, …"""

    @staticmethod
    def read(error: Exception) -> Answer:
        """Read them from the error's text."""
        text, _, debug = str(error).partition("\n\nDebug source")
        status = _STATUS.search(text)
        stage = _STAGE.search(debug)
        return Answer(
            type(error).__name__,
            text,
            int(status[1]) if status else 0,
            stage[1] if stage else "",
        )

    @property
    def wants_credentials(self) -> bool:
        """Whether the failure was in finding credentials, not in the request itself."""
        return self.says("token request", *_CREDENTIAL_HOSTS)

    def says(self, *texts: str) -> bool:
        """Whether one of these is in the text."""
        return any(text in self.text for text in texts)


def explain(
    operation: str, key: str, error: Exception, scheme: str, mode: PutMode = "overwrite"
) -> CordwoodError:
    """The error of ours for one of the client library's.

    Args:
        operation: get, get_range, head, put, copy, delete or list.
        key: the object, or a list's prefix.
        error: what the client library raised.
        scheme: s3, gs or az, for the hint.
        mode: what kind of put it was.
    """
    answer = Answer.read(error)
    refusal = _refusal(operation, key, answer, mode)
    if refusal is not None:
        return refusal
    verdict = next(verdict for applies, verdict in _VERDICTS if applies(answer))
    return StoreError(
        f"{operation} {key!r}: {' '.join(answer.text.split())[:_MESSAGE_CHARS_MAX] or answer.kind}",
        code=verdict.code,
        operation=operation,
        key=key,
        applied=verdict.applied and operation in {"put", "copy", "delete"},
        transient=verdict.transient,
        hint=verdict.hint.format(credentials=CREDENTIALS_HINT[scheme]),
    )


def _refusal(operation: str, key: str, answer: Answer, mode: PutMode) -> CordwoodError | None:
    """The answers that are no failures: exists, another one, not there."""
    if answer.wants_credentials or answer.says(*_NO_BUCKET):
        return None
    is_create = operation in {"put", "copy"} and mode == "create"
    if is_create and answer.kind == "AlreadyExistsError":
        if answer.status in {0, 412} or answer.says("BlobAlreadyExists"):
            return AlreadyExistsError(f"{operation} {key!r}: the object exists")
    elif operation == "put" and isinstance(mode, Match) and answer.kind == "PreconditionError":
        return ContendedError(f"put {key!r}: the object is not the one with etag {mode.etag}")
    elif operation in {"get", "get_range", "head", "copy"} and answer.kind == "FileNotFoundError":
        return NotFoundError(f"{operation} {key!r}: no such object")
    return None


class _Verdict(NamedTuple):
    code: Code
    transient: bool
    applied: bool
    hint: str = ""


_NOT_SENT = {"NotSupportedError", "NotImplementedError", "ValueError", "InvalidPathError"}

_VERDICTS: tuple[tuple[Callable[[Answer], bool], _Verdict], ...] = (
    (
        lambda answer: answer.wants_credentials,
        _Verdict(Code.STORE_DENIED, False, False, "no credentials were found; {credentials}"),
    ),
    (
        lambda answer: answer.says(*_NO_BUCKET),
        _Verdict(Code.STORE_FAILED, False, False, "create the bucket or container first"),
    ),
    (
        lambda answer: answer.status in {401, 403},
        _Verdict(
            Code.STORE_DENIED,
            False,
            False,
            "the credentials lack a right or are wrong; {credentials}",
        ),
    ),
    (
        lambda answer: answer.status == 501,
        _Verdict(Code.STORE_UNSAFE, False, False, "use a store that can do conditional puts"),
    ),
    (
        lambda answer: answer.says("ETag Header missing"),
        _Verdict(Code.STORE_UNSAFE, False, True, "use a store that gives etags"),
    ),
    (
        lambda answer: answer.says("configured region"),
        _Verdict(Code.STORE_FAILED, False, False, "set AWS_REGION or give region="),
    ),
    (
        lambda answer: answer.status == 429,
        _Verdict(
            Code.STORE_FAILED,
            True,
            False,
            "send less; Google allows about one write a second to one object",
        ),
    ),
    (
        lambda answer: answer.status in {408, 409} or answer.status >= 500,
        _Verdict(Code.STORE_FAILED, True, True),
    ),
    (
        lambda answer: answer.status == 400 and answer.says("RequestTimeout"),
        _Verdict(Code.STORE_FAILED, True, True),
    ),
    (
        lambda answer: answer.status != 0,
        _Verdict(Code.STORE_FAILED, False, False),
    ),
    (
        lambda answer: answer.stage == "Connect",
        _Verdict(
            Code.STORE_UNREACHABLE, True, False, "check the endpoint, the network and the host name"
        ),
    ),
    (
        lambda answer: answer.kind in _NOT_SENT,
        _Verdict(Code.STORE_FAILED, False, False),
    ),
    (
        lambda answer: True,
        _Verdict(Code.STORE_FAILED, True, True),
    ),
)
"""The table in the module's header; the first row that applies counts."""
