"""`cordwood log stream`, and `--stream` of the commands that write and read."""

from __future__ import annotations


def test_the_life_of_a_stream(run, url):
    """Opened, written, read, shown, closed; for people."""
    run("log", "create", url)
    assert "2 streams are open\n" == run("log", "stream", "open", url, "eu", "us")
    assert "stream asia is open\n" == run(
        "log", "stream", "open", url, "asia", "--metadata", '{"team": "web [red]"}'
    )
    assert "offsets 1 to 2" in run("log", "append", url, "--stream", "eu", stdin="oak\nelm\n")
    keyed = run(
        *("log", "append", url, "--stream", "us", "--as", "jsonl", "--key", "k"),
        stdin='{"k": "a"}\n',
    )
    assert "offset 3" in keyed
    assert "1\toak\n2\telm\n" == run("log", "read", url, "--stream", "eu")
    assert "2\telm\n" == run("log", "tail", url, "--start", "2", "--stream", "eu", "-n", "1")
    table = run("log", "stream", "list", url)
    assert all(word in table for word in ("asia", "eu", "us", "open", "web [red]"))
    assert "stream us is closed\n" == run("log", "stream", "close", url, "us")
    assert "us" not in run("log", "stream", "list", url).split()
    shown = run("log", "stream", "show", url, "us", "--metadata", '{"x": 1}')
    assert shown.startswith("stream us is closed, last changed 20")
    assert '"x": 1' in shown


def test_for_programs(run, url):
    """Every command speaks JSON."""
    run("log", "create", url)
    opened = run("log", "stream", "open", url, "a", "b", "--metadata", '{"x": [1]}', "--json")
    assert {"streams": ["a", "b"], "state": "open"} == opened
    assert {"streams": ["b"], "state": "closed"} == run(
        "log", "stream", "close", url, "b", "--json"
    )
    assert ["a"] == list(run("log", "stream", "list", url, "--json"))
    both = run("log", "stream", "list", url, "--closed", "--json")
    assert {"a": "open", "b": "closed"} == {name: one["state"] for name, one in both.items()}
    shown = run("log", "stream", "show", url, "a", "--json")
    assert ("a", "open", {"x": [1]}) == (shown["stream"], shown["state"], shown["metadata"])
    run("log", "append", url, "--stream", "a", stdin="oak\n")
    assert "a" == run("log", "read", url, "--stream", "a", "--json")["stream"]


def test_what_goes_wrong_is_one_line(run, url):
    """A log or a stream that is not there, one that is not open, and metadata that is none."""
    assert "no log named" in run("log", "stream", "list", url, code=1)
    run("log", "create", url)
    assert "stream 'x' of log 'orders' is not open; nothing was appended" in run(
        "log", "append", url, "--stream", "x", stdin="oak\n", code=1
    )
    error = run("log", "append", url, "--stream", "x", "--json", stdin="oak\n", code=1)
    assert "stream_not_open" == error["error"]
    for words in (("close", url, "x"), ("show", url, "x")):
        assert "has no stream 'x'" in run("log", "stream", *words, code=1)
    for metadata in ("{", "[1]"):
        words = ("log", "stream", "open", url, "x", "--metadata", metadata)
        assert "--metadata is" in run(*words, code=1)
    run("log", "stream", "open", url, code=2)


def test_a_file_of_one_stream(run, url, tmp_path):
    """What is written to a file are the records of the stream."""
    run("log", "create", url)
    run("log", "stream", "open", url, "a", "b")
    for stream in ("a", "b", "a"):
        run("log", "append", url, "--stream", stream, stdin=f"{stream}\n")
    out = tmp_path / "out.jsonl"
    assert "wrote 2 records" in run("log", "read", url, "--stream", "a", "-o", out)
    assert 2 == out.read_text().count('"body":"a"')
