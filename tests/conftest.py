"""What the whole suite shares: real servers, hypothesis profiles, and no silent skips in CI."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from cordwood.spark import missing, session
from cordwood.testing.servers import azure_server, azurite_missing, s3_server

pytest.register_assert_rewrite("cordwood.testing.stores")

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser):
    """`--fail-on-skip`: on a machine that has every tool, a skipped test is a failure."""
    parser.addoption("--fail-on-skip", action="store_true", help="count skipped tests as failures")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn skips into failures where that was asked for."""
    outcome = yield
    report = outcome.get_result()
    is_counted = item.get_closest_marker("data") is None
    if report.skipped and is_counted and item.config.getoption("--fail-on-skip"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --fail-on-skip was given: {report.longrepr}"


class OneForSpark(LoadScopeScheduling):
    """Tests are dealt out one by one, but all that use Spark go to one process: one JVM does."""

    def _split_scope(self, nodeid):
        uses_spark = nodeid.startswith("tests/spark/") or nodeid.endswith("/spark.md]")
        return "spark" if uses_spark else nodeid


def pytest_xdist_make_scheduler(config, log):
    """For `--dist loadscope`, the scheduler above."""
    return OneForSpark(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def s3():
    """A real S3 server."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure():
    """A real Azure server, where Node is there to run it."""
    if missing := azurite_missing():
        pytest.skip(missing)
    with azure_server() as server:
        yield server


QUICK_SPARK = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.streaming.pollingDelay": "10ms",
}


@pytest.fixture(scope="session")
def quick_spark(tmp_path_factory):
    """Whatever a test starts of Spark, in whatever process, starts quickly.

    JVMs are quick to start instead of becoming fast. Python workers load the modules of the wheel,
    which are compiled; by default they load the same from a zip, and each compiles them anew.
    """
    if reason := missing():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(find_spec("pyspark").origin).parent / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory, quick_spark):
    """The one Spark session of a test process: two slots, and a failed task is tried once more."""
    home = tmp_path_factory.mktemp("spark")
    places = {"spark.local.dir": home / "local", "spark.sql.warehouse.dir": home / "warehouse"}
    # Its JVM outlives the directory of the test that happens to start it, and runs in its own.
    with contextlib.chdir(home):
        made = session("local[2,2]", app="cordwood-tests", conf=QUICK_SPARK | places)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
