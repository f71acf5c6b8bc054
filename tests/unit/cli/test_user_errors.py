import importlib
import sys

import pytest

from penstock.cli.user_errors import UserCodeFailed, user_place, user_traceback
from penstock.errors import ConfigError


def traceback_of(folder, monkeypatch, source, name):
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    try:
        importlib.import_module(name)
    except Exception as error:
        return user_traceback(error)
    finally:
        sys.modules.pop(name, None)
    raise AssertionError("it was imported")


def frames(text):
    """The file and the line of each frame, without those of this test."""
    found = [line.strip() for line in text.splitlines() if line.startswith('  File "')]
    return [line for line in found if __file__ not in line]


def test_only_the_frames_of_the_user_are_shown(tmp_path, monkeypatch):
    source = "import penstock as ps\n\ndef f():\n    ps.Service(1 / 0)\n\nf()\n"
    text = traceback_of(tmp_path, monkeypatch, source, "user_errors_a")
    assert [line.partition("line ")[2] for line in frames(text)] == ["6, in <module>", "4, in f"]
    assert text.endswith("ZeroDivisionError: division by zero\n")


def test_an_error_raised_in_this_package_ends_with_the_line_that_called_it(tmp_path, monkeypatch):
    source = "import penstock.config as c\n\nc.whole_number(1)\n"
    text = traceback_of(tmp_path, monkeypatch, source, "user_errors_b")
    assert [line.partition("line ")[2] for line in frames(text)] == ["3, in <module>"]
    source = "import penstock.config as c\n\nc.from_environment(3, {})\n"
    text = traceback_of(tmp_path, monkeypatch, source, "user_errors_c")
    assert next(line.partition("line ")[2] for line in frames(text)) == "3, in <module>"
    assert "penstock/config.py" not in text


def test_what_caused_an_error_is_shown_in_the_same_way(tmp_path, monkeypatch):
    source = "try:\n    import nothing_there\nexcept ImportError as e:\n    raise RuntimeError('no') from e\n"
    text = traceback_of(tmp_path, monkeypatch, source, "user_errors_d")
    assert "<frozen" not in text
    assert "ModuleNotFoundError: No module named 'nothing_there'" in text
    assert "direct cause" in text
    assert text.endswith("RuntimeError: no\n")


def test_a_syntax_error_has_its_place_and_no_other_frame(tmp_path, monkeypatch):
    text = traceback_of(tmp_path, monkeypatch, "x = 1\nx +* 2\n", "user_errors_e")
    assert frames(text) == [f'File "{tmp_path}/user_errors_e.py", line 2']
    assert "SyntaxError: invalid syntax" in text


def test_the_place_of_an_error_is_the_last_line_of_the_users(tmp_path, monkeypatch):
    file = tmp_path / "user_errors_f.py"
    file.write_text("import penstock as ps\n\ndef f():\n    ps.Service(len, name='')\n\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        importlib.import_module("user_errors_f")
    assert user_place(refused.value) == f"{file}, line 4"
    assert user_place(ConfigError("raised by nobody")) == ""


def test_the_error_keeps_its_name_and_its_words():
    failed = UserCodeFailed(ValueError("bad"))
    assert (failed.kind, str(failed)) == ("ValueError", "ValueError: bad")
    with pytest.raises(UserCodeFailed):
        raise failed
