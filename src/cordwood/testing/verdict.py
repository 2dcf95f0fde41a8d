"""What a simulation finds, and the seed that finds it again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cordwood.testing.simloop import simulate

T = TypeVar("T")


class ModelBrokenError(AssertionError):
    """The system did something the model does not allow."""


def judged(
    seed: int,
    main: Callable[[], Coroutine[Any, Any, T]],
    *findings: type[BaseException],
) -> T:
    """Run `main` in simulated time; what it finds is raised with the seed in the message.

    A finding may be deep in a group of tasks that failed together: the first one counts. Besides a
    broken model these kinds of error count as one.

    Raises:
        ModelBrokenError: there was a finding.
    """
    try:
        return simulate(seed, main)
    except BaseException as error:
        group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
        found: BaseException | None = group.subgroup(ModelBrokenError) or group.subgroup(findings)
        if found is None:
            raise
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        what = str(found) if isinstance(found, ModelBrokenError) else repr(found)
        raise ModelBrokenError(f"seed {seed}: {what}") from error
