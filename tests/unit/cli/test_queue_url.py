import pytest

from penstock.cli.options import WronglyCalled
from penstock.cli.queue_url import needed_queue_url, read_queue_url

SET = {"PENSTOCK_QUEUE_URL": "sqlite:///variable.db"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "queue"
    path.write_text("redis://:geheim@host\n")
    return path


def test_the_flag_wins_over_the_file_and_the_file_over_the_variable(file):
    assert read_queue_url("sqlite:///flag.db", None, SET) == "sqlite:///flag.db"
    assert read_queue_url(None, str(file), SET) == "redis://:geheim@host"
    assert read_queue_url(None, None, SET) == "sqlite:///variable.db"


def test_a_file_may_begin_with_a_byte_order_mark_and_have_any_line_end(file):
    file.write_bytes(b"\xef\xbb\xbfredis://host/2\r\n")
    assert read_queue_url(None, str(file), {}) == "redis://host/2"


@pytest.mark.parametrize("environ", [{}, {"PENSTOCK_QUEUE_URL": ""}])
def test_no_queue_is_none_where_none_is_needed_and_else_an_error(environ):
    assert read_queue_url(None, None, environ) is None
    with pytest.raises(WronglyCalled, match="no queue is set"):
        needed_queue_url(None, None, environ)


def test_both_flags_are_an_error(file):
    with pytest.raises(WronglyCalled, match="cannot be used together"):
        read_queue_url("sqlite:///q.db", str(file), {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "one line"),
        (b"sqlite:///a.db\nsqlite:///b.db", "one line"),
        (b"\xff\xfe", "it is not text"),
        (b"nothing", "nothing is not the URL of a queue"),
    ],
)
def test_a_file_that_holds_no_url_is_told(tmp_path, content, words):
    path = tmp_path / "queue"
    path.write_bytes(content)
    with pytest.raises(WronglyCalled, match=words):
        read_queue_url(None, str(path), {})


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(WronglyCalled, match="No such file or directory"):
        read_queue_url(None, str(tmp_path / "queue"), {})
