import pytest

from penstock.errors import ConfigError, InputTooLarge
from penstock.jobs.inputs import JobInput, encode_job_input
from penstock.jobs.job_options import LONGEST_DELAY_SECONDS, OPTION_NAMES, JobOptions, read_job_options
from penstock.jobs.new_jobs import MAX_INLINE, new_job, new_job_id
from rows import each

NOW = 1_700_000_000.0
ONE = encode_job_input(1, None)


@each(
    ("given", "words"),
    [
        ({"priority": 1.0}, "priority must be an integer from -1000000000 to 1000000000, got 1.0"),
        ({"priority": True}, "got True"),
        ({"priority": 1_000_000_001}, "got 1000000001"),
        ({"delay": -1}, "delay must be seconds from 0"),
        ({"delay": float("nan")}, "got nan"),
        ({"delay": float("inf")}, "got inf"),
        ({"delay": "1"}, "got '1'"),
        ({"deadline": float("inf")}, "deadline must be a time in Unix seconds, got inf"),
        ({"deadline": 10**400}, "deadline must be a time"),
        ({"id": "a b"}, "id must be 1 to 128 characters of A-Z a-z 0-9 . _ -, got 'a b'"),
        ({"id": "a\n"}, "id must be"),
        ({"id": ""}, "got ''"),
        ({"id": "a" * 129}, "id must be"),
        ({"id": 7}, "got 7"),
        ({"key": ""}, "key must be 1 to 256 printable characters, got ''"),
        ({"key": "a" * 257}, "key must be"),
        ({"key": "a\0"}, "key must be"),
        ({"key": "\ud800"}, "key must be"),
        ({"service": "a/b"}, "service must be"),
        ({"service": None}, "service must be"),
        ({"input_url": ""}, "input_url must be a URL"),
        ({"input_url": "a.wav"}, "input_url must be a URL such as s3://bucket/a.wav or file:///in/a.wav, got 'a.wav'"),
        ({"input_url": "http://[a"}, "input_url must be a URL such as"),
        ({"input_url": "htps://host/a"}, "scheme htps:// is not supported: did you mean https://?"),
        ({"output_url": "ftp://me:geheim@host/a"}, "output_url: scheme ftp:// is not supported; use file://, s3://"),
        (
            {"input_url": "http://x:99999/"},
            "http://x:99999/: the host or the port is not valid",
        ),
        ({"output_url": "file:///out/../x"}, "output_url: file:///out/../x: a path must not contain `..`"),
        ({"output_url": "file:///out/"}, "output_url: file:///out/ names a directory"),
        ({"output_url": 3}, "output_url must be a URL of at most 8192 printable characters, got 3"),
        ({"content_type": "text/csv"}, "no service accepts the content type 'text/csv'; supported: application/json"),
        ({"content_type": "  "}, "no service accepts"),
        ({"content_type": "a\nb", "input_url": "s3://in/b"}, "content_type must be a media type"),
        ({"accept": "text/html"}, "no service produces 'text/html'"),
        ({"accept": "ä"}, "accept must be media types"),
    ],
)
def test_an_option_that_cannot_be_is_told(given, words):
    with pytest.raises(ConfigError) as caught:
        JobOptions(**given)
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_what_is_allowed_at_its_limits_is_taken():
    for priority in (-1_000_000_000, 1_000_000_000):
        assert JobOptions(priority=priority, key="ä b" * 80, id="a" * 128).priority == priority


def test_a_file_at_a_url_may_be_of_any_type():
    assert (
        new_job(None, JobOptions(input_url="s3://in/b.wav", content_type="audio/wav"), now=NOW).content_type
        == "audio/wav"
    )
    assert new_job(None, JobOptions(input_url="file:///a"), now=NOW).body == b""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("priorty", "a job has no option 'priorty': did you mean 'priority'?"),
        ("inputs", "did you mean 'input'?"),
        ("colour", f"a job has no option 'colour'; options: input, {', '.join(OPTION_NAMES)}"),
        (3, "a job has no option 3"),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_is_near(name, words):
    with pytest.raises(ConfigError) as caught:
        read_job_options({"input": 1, name: 2}, besides=("input",))
    assert words in str(caught.value)


def test_a_job_has_one_input():
    with pytest.raises(ConfigError, match="give input or input_url, not both"):
        new_job(ONE, JobOptions(input_url="s3://in/b"), now=NOW)
    with pytest.raises(ConfigError, match="a job needs an input or an input_url"):
        new_job(None, JobOptions(), now=NOW)


@pytest.mark.parametrize(
    ("deadline", "words"),
    [
        (60, "60 has passed: write time.time() + 60"),
        (0, "write time.time() + 0"),
        (NOW, "the deadline passed 0 s ago"),
        (NOW - 9.5, "the deadline passed 10 s ago"),
        ((NOW + 60) * 1000, "1700000060000 is more than ten years ahead: is it in milliseconds?"),
        (2 * NOW, "deadline must be a time in Unix seconds; 3400000000 is more than ten years ahead"),
    ],
)
def test_a_deadline_that_has_passed_or_that_nobody_can_mean_is_told(deadline, words):
    with pytest.raises(ConfigError) as caught:
        new_job(ONE, JobOptions(deadline=deadline), now=NOW)
    assert words in str(caught.value)


def test_a_deadline_may_be_ten_years_ahead():
    assert new_job(ONE, JobOptions(deadline=NOW + LONGEST_DELAY_SECONDS), now=NOW).deadline == NOW + 10 * 366 * 86400


def test_an_input_may_have_as_many_bytes_as_a_store_takes_and_no_more():
    new_job(encode_job_input(bytes(MAX_INLINE), None), JobOptions(), now=NOW)
    with pytest.raises(
        InputTooLarge, match=r"has 262145 bytes, more than max_inline_bytes \(262144\): store it in a file"
    ):
        new_job(encode_job_input(bytes(MAX_INLINE + 1), None), JobOptions(), now=NOW)
    with pytest.raises(InputTooLarge, match=r"has 1 bytes, more than max_inline_bytes \(0\)"):
        new_job(ONE, JobOptions(), now=NOW, max_inline_bytes=0)


def test_a_digest_is_of_the_input_and_of_every_option_that_makes_it_another_job():
    digests = [
        new_job(given, options, now=NOW).digest
        for given, options in (
            (ONE, JobOptions()),
            (encode_job_input(2, None), JobOptions()),
            (JobInput(b"1", "application/msgpack", b"1"), JobOptions()),
            (ONE, JobOptions(priority=1)),
            (ONE, JobOptions(service="a")),
            (ONE, JobOptions(accept="application/json")),
            (ONE, JobOptions(output_url="s3://in/b")),
            (None, JobOptions(input_url="s3://in/b")),
        )
    ]
    assert len(set(digests)) == len(digests)


def test_a_job_that_is_submitted_once_more_has_the_same_digest():
    first = new_job(ONE, JobOptions(key="a", deadline=NOW + 60), now=NOW)
    later = new_job(ONE, JobOptions(key="a", deadline=NOW + 90, delay=3, id="b"), now=NOW + 30)
    assert first.digest == later.digest


def test_ids_are_proper_and_sort_by_time():
    ids = [new_job_id(NOW + i / 100) for i in range(100)]
    assert ids == sorted(ids)
    assert JobOptions(id=ids[0]).id == ids[0]
    assert len({new_job_id(NOW) for _ in range(100)}) == 100
