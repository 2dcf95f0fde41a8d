"""`cordwood log bench`: measure, always beside a peer or a limit in the same run.

Machines are shared and noisy, so a figure alone means little; a ratio taken in one run means more.
docs/benchmarks.md holds results with the commands that made them.
"""

from cordwood.cli.bench.commands import bench

__all__ = ["bench"]
