"""What each failure of a remote store is taken to mean: the table in `store/answers.py`."""

from __future__ import annotations

import pytest

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    NotFoundError,
    StoreError,
)
from cordwood.store.answers import explain
from cordwood.store.api import Match


def error(kind, text, stage=""):
    """An error as the client library raises it."""
    debug = f"\n\nDebug source:\nHttpError {{\n    kind: {stage},\n}}" if stage else ""
    if kind in {"FileNotFoundError", "ValueError"}:
        return {"FileNotFoundError": FileNotFoundError, "ValueError": ValueError}[kind](
            text + debug
        )
    return type(kind, (Exception,), {})(text + debug)


def status(number, body="", kind="GenericError"):
    text = f"Error performing PUT https://host/key - Server returned non-2xx status code: {number}"
    return error(kind, f"{text} Some Words: {body}")


@pytest.mark.parametrize(
    ("failure", "operation", "mode", "expected"),
    [
        (status(412, kind="AlreadyExistsError"), "put", "create", AlreadyExistsError),
        (
            status(409, "<Code>BlobAlreadyExists</Code>", "AlreadyExistsError"),
            "put",
            "create",
            AlreadyExistsError,
        ),
        (error("AlreadyExistsError", "exists"), "put", "create", AlreadyExistsError),
        (status(412, kind="PreconditionError"), "put", Match("e"), ContendedError),
        (status(404, kind="PreconditionError"), "put", Match("e"), ContendedError),
        (status(404, kind="FileNotFoundError"), "get", "overwrite", NotFoundError),
        (status(404, kind="FileNotFoundError"), "get_range", "overwrite", NotFoundError),
        (status(404, kind="FileNotFoundError"), "head", "overwrite", NotFoundError),
    ],
)
def test_refusals(failure, operation, mode, expected):
    """Answers that are no failures become the contract's refusals."""
    assert expected is type(explain(operation, "key", failure, "s3", mode))


@pytest.mark.parametrize(
    ("failure", "code", "transient", "applied"),
    [
        (status(429, "SlowDown"), Code.STORE_FAILED, True, False),
        (status(503, "SlowDown"), Code.STORE_FAILED, True, True),
        (status(500), Code.STORE_FAILED, True, True),
        (status(408), Code.STORE_FAILED, True, True),
        (
            status(409, "ConditionalRequestConflict", "AlreadyExistsError"),
            Code.STORE_FAILED,
            True,
            True,
        ),
        (status(400, "<Code>RequestTimeout</Code>"), Code.STORE_FAILED, True, True),
        (status(400, "<Code>InvalidArgument</Code>"), Code.STORE_FAILED, False, False),
        (status(403, "AccessDenied", "PermissionDeniedError"), Code.STORE_DENIED, False, False),
        (status(401, kind="UnauthenticatedError"), Code.STORE_DENIED, False, False),
        (
            status(404, "<Code>NoSuchBucket</Code>", "FileNotFoundError"),
            Code.STORE_FAILED,
            False,
            False,
        ),
        (
            status(404, "<Code>ContainerNotFound</Code>", "PreconditionError"),
            Code.STORE_FAILED,
            False,
            False,
        ),
        (status(501, "NotImplemented"), Code.STORE_UNSAFE, False, False),
        (
            error("GenericError", "ETag Header missing from response"),
            Code.STORE_UNSAFE,
            False,
            True,
        ),
        (
            error("GenericError", "redirect; an incorrectly configured region"),
            Code.STORE_FAILED,
            False,
            False,
        ),
        (
            error("GenericError", "error sending request", "Connect"),
            Code.STORE_UNREACHABLE,
            True,
            False,
        ),
        (error("GenericError", "error sending request", "Timeout"), Code.STORE_FAILED, True, True),
        (error("GenericError", "error sending", "Interrupted"), Code.STORE_FAILED, True, True),
        (error("GenericError", "error sending", "Request"), Code.STORE_FAILED, True, True),
        (error("GenericError", "something new"), Code.STORE_FAILED, True, True),
        (error("ValueError", "bad path"), Code.STORE_FAILED, False, False),
        (
            error("GenericError", "Error performing PUT http://169.254.169.254/latest/api/token"),
            Code.STORE_DENIED,
            False,
            False,
        ),
    ],
)
def test_failures(failure, code, transient, applied):
    """Each failure says whether it may pass and whether the write may have happened."""
    for mode in ("create", Match("e"), "overwrite"):
        if mode == "create" and "AlreadyExists" in type(failure).__name__ and "412" in str(failure):
            continue
        found = explain("put", "key", failure, "s3", mode)
        assert isinstance(found, StoreError)
        assert (code, transient, applied) == (found.code, found.transient, found.applied)
        assert ("put", "key") == (found.operation, found.key)
    assert not explain("get", "key", failure, "s3").applied


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_missing_credentials(scheme, variable):
    """Without credentials the hint names the variables to set, for each cloud."""
    failure = error("GenericError", "Error performing token request: 169.254.169.254 said 404")
    found = explain("get", "key", failure, scheme)
    assert Code.STORE_DENIED == found.code
    assert variable in found.hint


def test_message_is_one_short_line():
    """However long the library's text, ours is one line that names operation and key."""
    found = explain("put", "key", error("GenericError", "long\n" * 1_000, "Timeout"), "s3")
    assert found.message.startswith("put 'key': long long")
    assert len(found.message) < 500
    assert "\n" not in found.message
