"""Story 02: a second create is refused and changes nothing."""

from __future__ import annotations

import pytest

from cordwood import AlreadyExistsError, Code


@pytest.mark.cas
async def test_a_second_create_is_refused(log, bucket):
    """AlreadyExistsError, and the store holds exactly the bytes it held before."""
    await log.create()
    before = await bucket.get("manifest/MANIFEST")
    with pytest.raises(AlreadyExistsError, match="orders") as caught:
        await log.create()
    assert Code.ALREADY_EXISTS == caught.value.code
    assert before == await bucket.get("manifest/MANIFEST")
    assert ["manifest/MANIFEST"] == await bucket.keys()


async def test_a_second_create_may_be_meant(log, bucket, bodies):
    """With `exist_ok` a log with records is left as it is, whatever else was asked for."""
    async with log.writer(create=True) as writer:
        await writer.append(b"kept")
    before = await bucket.get("manifest/MANIFEST")
    await log.create(exist_ok=True, grace_s=60)
    assert before == await bucket.get("manifest/MANIFEST")
    assert [b"kept"] == await bodies(log)


async def test_something_else_under_the_name_is_not_overwritten(log, bucket):
    """An object that is no manifest is not taken for a log, nor replaced."""
    await bucket.put("manifest/MANIFEST", b"precious")
    with pytest.raises(AlreadyExistsError):
        await log.create()
    assert b"precious" == await bucket.get("manifest/MANIFEST")
