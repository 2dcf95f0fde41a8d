"""The page of the volume format says what the code checks."""

from __future__ import annotations

import re
from pathlib import Path

from cordwood.volume import format as volume_format

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "volume.md").read_text(encoding="utf-8")


def test_invariants_are_the_codes():
    """The page has the invariants that volume/format.py states, in order."""
    stated = re.findall(r"^(VOL-\d+) ", volume_format.__doc__ or "", re.MULTILINE)
    assert stated == re.findall(r"^\| \*\*(VOL-\d+)\*\* \|", PAGE, re.MULTILINE)
    assert len(stated) == 5


def test_every_field_is_explained():
    """Whatever is in a head, a manifest or a tag is on the page."""
    kinds = (
        volume_format._Head,
        volume_format._PackHead,
        volume_format.Provenance,
        volume_format.Manifest,
        volume_format.Watermark,
        volume_format.Parent,
        volume_format.Tag,
    )
    missing = [name for kind in kinds for name in kind.__struct_fields__ if f"`{name}`" not in PAGE]
    assert missing == []
