"""A real S3 server passes the suite, through every layer users have in between."""

from __future__ import annotations

import itertools

import pytest

from cordwood.store.remote import RemoteStore
from cordwood.store.url import Store
from cordwood.testing.stores import StoreTests

pytestmark = pytest.mark.s3

_number = itertools.count()


class TestS3(StoreTests):
    """As users open it: retried and hedged."""

    etag_is_content = True

    @pytest.fixture
    def store(self, s3):
        return Store(f"{s3.url}/store-{next(_number)}", hedge=True, **s3.options)


class TestS3Bare(StoreTests):
    """The remote store alone, in the root of a bucket shared with nothing else's prefix."""

    etag_is_content = True
    many_keys = 1_001

    @pytest.fixture
    def store(self, s3):
        return RemoteStore(f"{s3.url}/bare-{next(_number)}/deeper", **s3.options)
