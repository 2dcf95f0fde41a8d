"""Which logs are worth a compaction, and why."""

from __future__ import annotations

import pytest

from cordwood.base.errors import InvalidInputError
from cordwood.fleet.select import Dirty, Policy, Reason, merge, select

NOW_US = 10_000_000_000
POLICY = Policy(min_records=100, min_bytes=1_000, max_age_s=60.0, max_reinserts=5, limit=3)


def dirty(log="a", records=1, num_bytes=1, age_s=1.0, reinserts=0, members=("m1",)):
    """A log with so much to compact."""
    return Dirty(
        log=log,
        start=10,
        limit=10 + records,
        num_bytes=num_bytes,
        first_us=NOW_US - int(age_s * 1_000_000),
        reinserts=reinserts,
        members=members,
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (dirty(), ()),
        (dirty(records=100), (Reason.SIZE,)),
        (dirty(records=99), ()),
        (dirty(num_bytes=1_000), (Reason.SIZE,)),
        (dirty(age_s=60.0), (Reason.AGE,)),
        (dirty(age_s=59.0), ()),
        (dirty(age_s=-5.0), ()),
        (dirty(reinserts=5), (Reason.REINSERTIONS,)),
        (dirty(records=100, age_s=61.0, reinserts=9), tuple(Reason)),
    ],
)
def test_any_one_reason_is_enough(one, expected):
    """Size, age or reinsertions; all that hold are given."""
    # EVIDENCE-OF: G-55
    found = select([one], NOW_US, POLICY)
    assert ([expected] if expected else []) == [selected.reasons for selected in found]


def test_the_oldest_come_first_and_the_answer_is_bounded():
    """A fleet of many dirty logs gives a few at a time, none is passed over for ever."""
    # EVIDENCE-OF: G-55
    some = [dirty(log=f"log-{n}", age_s=100.0 + n) for n in range(50)]
    found = select(some, NOW_US, POLICY)
    assert ["log-49", "log-48", "log-47"] == [one.dirty.log for one in found]


def test_a_log_that_two_members_marked_is_one_log():
    """A log that hopped between members is in both dirty logs, and in one answer once."""
    one = dirty(age_s=5.0, reinserts=1, members=("m1",))
    two = dirty(age_s=9.0, records=4, reinserts=0, members=("m2",))
    (merged,) = merge([one, two])
    assert (("m1", "m2"), 1, 4, two.first_us) == (
        merged.members,
        merged.reinserts,
        merged.num_records,
        merged.first_us,
    )


@pytest.mark.parametrize(
    "wrong", [{"min_records": -1}, {"max_age_s": float("nan")}, {"limit": "5"}]
)
def test_a_policy_that_cannot_be_meant_is_refused(wrong):
    """Negative, not a number, or not even that."""
    with pytest.raises(InvalidInputError):
        Policy(**wrong)
