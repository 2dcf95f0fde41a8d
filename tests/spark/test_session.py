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


def fake_java(directory, script):
    """Something that is called java."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Error: UnsupportedClassVersionError' >&2; exit 1", "does not run: Error: Unsupp"),
        ("exit 3", "does not run: exit code 3"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_292\"' >&2", "is Java 8"),
    ],
)
def test_a_java_that_cannot_run_spark(tmp_path, monkeypatch, script, said):
    """Is found out before Spark is started with it."""
    fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert said in missing()
    assert "17 or newer" in missing()
    monkeypatch.setattr(sys.modules["cordwood.spark.session"], "active", lambda: None)
    with pytest.raises(StateError, match="17 or newer"):
        session()


def test_java_is_asked_once(tmp_path, monkeypatch):
    """That takes a moment."""
    fake_java(tmp_path, f"echo x >> {tmp_path}/asked; echo 'openjdk version \"21\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ["", "", ""] == [missing() for _ in range(3)]
    assert "x\n" == (tmp_path / "asked").read_text(encoding="utf-8")


def test_a_session_that_does_not_start(monkeypatch, tmp_path):
    """No traceback of the JVM: one error that says what to look at; `auto` stays here."""
    code = """
import asyncio, sys, warnings
from cordwood import StateError, Store
from cordwood.pipeline.engine import fastest
from cordwood.spark import session
try:
    session()
except StateError as error:
    print("told:", error.message, error.hint)
engine, why = asyncio.run(fastest([Store("file:///tmp")]))
print(engine.name, why)
"""
    fake_java(tmp_path, '[ "$1" = -version ] && echo \'openjdk version "17"\' >&2; exit 0')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("told: Spark does not start: ")
    assert "JAVA_HOME" in first
    assert second.startswith("local Spark does not start: ")


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
