"""The one place that makes a Spark session.

`session()` gives back the session that is there, as it is; only where there is none it makes one,
with the settings that matter for a source written in Python:

* the workers run this very Python, so that they find Cordwood and what it needs;
* JVM and Python talk through Unix sockets: a task then costs 10 ms instead of 30;
* locally, everything stays on the loopback address, whatever the machine's name resolves to;
* no web page, no progress bar that runs over the program's own output.

Nothing secret goes into a session's settings: every task and every log of events carries them. A
store takes its credentials from the environment of the process that opens it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from cordwood.base.errors import InvalidInputError, StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*,2]"
"""All cores of this machine; a task that failed is tried once more."""

JAVA_MIN = 17
JAVA_ANSWERS_S = 60
"""How long a Java may take to say which it is."""

_SECRET = re.compile(r"secret|password|token|access[.]?key|account[.]?key", re.IGNORECASE)
"""The names that Spark itself blackens where it shows settings, and Azure's."""


def check_session(spark: Any) -> None:
    """Raise unless it can be a session, of Spark or of Spark Connect.

    Raises:
        InvalidInputError: it is something else.
    """
    if not (hasattr(spark, "read") and hasattr(spark, "createDataFrame")):
        raise InvalidInputError(
            f"spark is a SparkSession, not {spark!r}", hint="cordwood.spark.session() gives one"
        )


def session(
    master: str | None = None, *, app: str = "cordwood", conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """The session that is active; if there is none, a new one.

    One that is there is given back untouched, and the arguments do not count.

    Args:
        master: where the work is done: `local[2]`, `spark://host:7077`, or `sc://host` for a
            Connect server. Without it, this machine; under `spark-submit`, what that was told.
        app: the name under which Spark shows it.
        conf: settings of Spark, in place of ours or besides them.

    Raises:
        InvalidInputError: a setting holds a secret, which every task would carry.
        StateError: pyspark or Java is missing, or Spark does not start.
    """
    settings = {name: _text(value) for name, value in (conf or {}).items()}
    for name in settings:
        if _SECRET.search(name):
            raise InvalidInputError(
                f"the setting {name} holds a secret, and Spark hands settings to every task",
                hint="set it in the environment of driver and executors instead",
            )
    if (there := active()) is not None:
        return there
    master = master or os.environ.get("SPARK_REMOTE")
    if reason := missing(master):
        raise StateError(reason)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only where it is used

    builder: Any = SparkSession.builder.appName(app)
    if (master or "").startswith("sc://"):
        builder = builder.remote(master)
        ours = {}
    else:
        ours = _prepare(master)
    for name, value in {**ours, **settings}.items():
        builder = builder.config(name, value)
    try:
        made: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise StateError(
            f"Spark does not start: {first_words(error)}",
            hint="see what its JVM said before; JAVA_HOME, SPARK_HOME and the master must fit",
        ) from error
    return made


def active() -> SparkSession | None:
    """The session of this thread, or else of this process; None if there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only where it is used

    if (there := SparkSession.getActiveSession()) is not None:
        return there
    try:
        return SparkSession.active()
    except Exception:  # noqa: BLE001 - whatever Spark says: there is none
        return None


def missing(master: str | None = None) -> str:
    """What keeps Spark from running here, in one line; empty if nothing does."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark needs pyspark: pip install 'cordwood[spark]'"
    if (master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://"):
        return ""  # The JVM runs elsewhere.
    # As Spark's own scripts look for it.
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"there is none in JAVA_HOME, {home}" if home else "install one, or set JAVA_HOME"
        return f"Spark needs a Java runtime, {JAVA_MIN} or newer: {where}"
    return _fault_of(java)


@cache
def _fault_of(java: str) -> str:
    """Why Spark cannot run on this Java; empty if it can. Asked once: that starts a JVM."""
    try:
        asked = subprocess.run(  # noqa: S603 - the Java that Spark would run
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_ANSWERS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Spark needs a Java runtime, {JAVA_MIN} or newer, and {java} does not run: {error}"
    said = (asked.stderr + asked.stdout).strip()
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if asked.returncode or version is None:
        why = said.partition("\n")[0] or f"exit code {asked.returncode}"
        return f"Spark needs a Java runtime, {JAVA_MIN} or newer, and {java} does not run: {why}"
    if int(version[1]) < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or newer, and {java} is Java {version[1]}"
    return ""


def first_words(error: Exception) -> str:
    """What it was, without the bridge's own words before and the stack behind."""
    lines = (line.strip(" :") for line in str(error).splitlines())
    said = (line for line in lines if line and not line.startswith("An error occurred while"))
    return next(said, type(error).__name__)


def _prepare(master: str | None) -> dict[str, str]:
    """Our settings, with what has to be in the environment before the JVM starts."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = LOCAL
    if master is not None:
        settings["spark.master"] = master
    if (master or "").startswith("local"):
        # A setting would come too late: the JVM looks up its own name before it reads any.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
    return settings


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
