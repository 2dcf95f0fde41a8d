"""The session factory: what it sets, what it leaves alone, what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cordwood import InvalidInputError, StateError
from cordwood.spark import missing, session


def test_a_session_that_is_there_is_given_back_untouched(spark):
    """Neither the master nor a setting of it changes."""
    before = dict(spark.sparkContext.getConf().getAll())
    there = session("local[1]", app="another", conf={"spark.sql.shuffle.partitions": 7})
    assert there is spark
    assert dict(spark.sparkContext.getConf().getAll()) == before
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_workers_run_this_python_over_unix_sockets(spark):
    """The interpreter is ours, and the two settings that cost most are set."""
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.python.unix.domain.socket.enabled") == "true"
    assert settings.get("spark.ui.enabled") == "false"
    there = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert there == [sys.executable]


@pytest.mark.parametrize(
    "name", ["spark.hadoop.fs.s3a.secret.key", "spark.my.password", "spark.executorEnv.AWS_TOKEN"]
)
def test_a_secret_is_refused(name):
    """Settings travel with every task, so none may hold a secret; the value is not repeated."""
    with pytest.raises(InvalidInputError, match="environment") as refused:
        session(conf={name: "hunter2"})
    assert name in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_without_java_it_says_what_to_do(monkeypatch):
    """No traceback of a JVM that is not there: one line."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "JAVA_HOME" in missing()
    monkeypatch.setattr(sys.modules["cordwood.spark.session"], "active", lambda: None)
    with pytest.raises(StateError, match="Java runtime"):
        session()


def test_a_connect_server_needs_no_java(monkeypatch):
    """Its JVM runs elsewhere."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert missing("sc://localhost") == ""


def test_importing_cordwood_does_not_load_spark():
    """Neither `cordwood` nor `cordwood.spark` costs a Spark user's start-up."""
    code = "import sys, cordwood, cordwood.spark; sys.exit('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0
