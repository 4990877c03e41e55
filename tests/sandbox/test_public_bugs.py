"""Public bugs of code-judge that the catalogue of hostile programs does not name, on the guest's own answers."""

import pytest

from tests.sandbox.conftest import ForkServer


def test_a_child_left_running_is_waited_for_as_python_does_and_ends_at_the_limit(fork_server: ForkServer) -> None:
    """https://github.com/0xWJ/code-judge/pull/7"""
    code = """
import multiprocessing, time
multiprocessing.get_context('fork').Process(target=time.sleep, args=(100,)).start()
"""
    result = fork_server.run(code, wall_s=1.0)
    assert result["status"] == "timeout"
    assert fork_server.run("print('next')")["stdout"] == "next\n"  # and nothing of it is left: the frame says so


@pytest.mark.parametrize("name", ["time", "os", "signal", "sys", "json", "struct"])
def test_a_module_the_program_did_not_import_is_no_name_of_it(fork_server: ForkServer, name: str) -> None:
    """https://github.com/0xWJ/code-judge/pull/10"""
    result = fork_server.run(name)
    assert (result["status"], result["exit_code"]) == ("error", 1)
    assert f"NameError: name '{name}' is not defined" in result["stderr"]


@pytest.mark.parametrize(
    "name",
    ["run", "main", "program", "limits", "frames", "result", "echo", "flush", "stdout", "exec", "compile", "code"],
)
def test_a_variable_may_have_any_name(fork_server: ForkServer, name: str) -> None:
    """One named like a helper of the wrapper broke the run: https://github.com/0xWJ/code-judge/pull/10"""
    result = fork_server.run(f"{name} = 7\nprint({name})\n{name}")
    assert (result["status"], result["stdout"], result["stderr"]) == ("ok", "7\n7\n", "")


def test_output_before_an_exception_and_bytes_that_are_no_text_are_kept(fork_server: ForkServer) -> None:
    """Cases B and C of the released code: both lost the whole output."""
    result = fork_server.run("import os\nos.write(1, b'a\\xff\\xfe')\nprint('b')\n1 / 0")
    assert (result["status"], result["stdout"]) == ("error", "a\ufffd\ufffdb\n")
    assert result["stderr"].endswith("ZeroDivisionError: division by zero\n")
