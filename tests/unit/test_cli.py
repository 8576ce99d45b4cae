"""The command line: every command explains itself, errors have codes of their own."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from dspatch import errors
from dspatch.cli import cli, main


def commands(group: click.Group, prefix: str = "dspatch") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


ALL = dict(commands(cli))


def run(*arguments: str) -> tuple[int, str, str]:
    """The installed command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_and_an_example_of_itself(name: str) -> None:
    command = ALL[name]
    assert command.help
    example = inspect.cleandoc(command.help).split("\b\n")[1].splitlines()[0]
    assert f"{example} ".startswith(f"{name} ")
    assert all(p.help for p in command.params if isinstance(p, click.Option))


@pytest.mark.parametrize("name", [name for name in ALL if name != "dspatch completion"])
def test_every_command_can_print_json(name: str) -> None:
    assert any("--json" in p.opts for p in ALL[name].params)


def test_exit_codes_are_unique_and_leave_clicks_own_alone() -> None:
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, errors.DspatchError) and c is not errors.DspatchError
    ]  # fmt: skip
    codes = [c.exit_code for c in classes]
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2} & set(codes)
    assert all(code < 126 for code in codes)
    assert all(c.__doc__ for c in classes)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["apply", "--engine", "vlm", "--rev", "v1"], errors.UnknownEngineError),
        (["apply", "--engine", "vllm", "--rev", "v0.27.1", "--variant", "deepseek-13b"], errors.UnknownVariantError),
        (["build-wheel"], errors.NoJobError),
        (["unapply"], errors.NoJobError),
        (["conformance"], errors.NoJobError),
        (["wheel", "verify"], errors.NoJobError),
        (["patch", "show", "nothing"], errors.PatchFormatError),
    ],
)  # fmt: skip
def test_bad_input_ends_with_its_own_code_and_what_to_do_next(
    arguments: list[str], error: type[errors.DspatchError], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == error.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    assert "next: " in err
    assert "Traceback" not in err
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == error.exit_code


def test_a_wrong_option_is_a_usage_error() -> None:
    code, _, err = run("apply", "--engine", "vllm")
    assert code == 2
    assert "--rev is needed" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    code, out, _ = run("completion", shell)
    assert code == 0
    assert "_DSPATCH_COMPLETE" in out


def test_options_complete_from_pins_and_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_DSPATCH_COMPLETE", "bash_complete")
        return re.findall(r"plain,(\S+)", run()[1])

    assert "v0.27.1" in complete("dspatch apply --engine vllm --rev v0.2")
    assert complete("dspatch apply --variant deepseek-v2-l") == ["deepseek-v2-lite"]
    assert "build-wheel" in complete("dspatch bu")


def test_help_starts_without_the_heavy_modules() -> None:
    code = "import sys; from dspatch.cli import cli; print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert not loaded & {"git", "jinja2", "rich", "unearth", "cyclonedx", "tomlkit"}


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ([], "cpu"),
        (["--engine", "vllm"], "cpu"),
        (["--engine", "lmdeploy"], "cuda"),
        (["--target", "cpu", "--engine", "lmdeploy"], "cpu"),
        (["--engine", "nobody-knows"], "cpu"),
    ],
)
def test_without_a_target_an_engine_has_the_one_it_is_for(words: list[str], target: str) -> None:
    context = ALL["dspatch apply"].make_context("apply", ["--rev", "v1", *words])
    assert context.params["target"] == target
