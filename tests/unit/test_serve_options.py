"""The options of a server, read from small sources that are written as vLLM and LMDeploy write theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.audit import source
from dspatch.serve import engines, options
from dspatch.serve.option import Option
from dspatch.serve.options import Taken
from tests.support import dedent

UTILS = """
    import argparse
    import re

    class FlexibleArgumentParser(argparse.ArgumentParser):
        def parse_args(self, args=None, namespace=None):
            for arg in args:
                arg.replace("_", "-")
                if arg.endswith("+"):
                    pass
                if arg.startswith("-O"):
                    pass
                key, *keys = arg.split(".")
"""
CONFIG = """
    from dataclasses import dataclass, field
    from enum import Enum
    from typing import Annotated, ClassVar, Literal, Optional, Union

    CacheDType = Literal["auto", "fp8"]
    Everything = Literal[CacheDType, "all"]

    class Format(str, Enum):
        AUTO = "auto"
        DUMMY = "dummy"

    @dataclass
    class Base:
        seed: Optional[int] = None

    @dataclass
    class CacheConfig(Base):
        hidden: ClassVar[int] = 3
        cache_dtype: CacheDType = "auto"
        everything: Annotated[Everything | None, "x"] = None
        share: float = 0.9
        prefix: bool = True
        names: list[str] = field(default_factory=list)
        pair: tuple[int, int] = (1, 2)
        backend: Union[str, CacheDType] = "auto"
        old: bool = False
        \"\"\"[DEPRECATED] it does nothing.\"\"\"

    @dataclass
    class VllmConfig:
        cache_config: CacheConfig | None = None
        extra: dict = field(default_factory=dict)
"""
ARGS = """
    import argparse
    import sys
    from vllm.config import CacheConfig, Format, VllmConfig

    def literal_to_kwargs(hints):
        kwarg = "metavar" if str in hints else "choices"

    def get_kwargs(cls):
        raise NotImplementedError

    class EngineArgs:
        @staticmethod
        def add_cli_args(parser):
            cache_kwargs = get_kwargs(CacheConfig)
            group = parser.add_argument_group("cache")
            if not ("serve" in sys.argv and "--help" in sys.argv):
                group.add_argument("--model", type=str)
            group.add_argument("--kv-cache-dtype", "-kv", **cache_kwargs["cache_dtype"])
            group.add_argument("--everything", **cache_kwargs["everything"])
            group.add_argument("--share", **cache_kwargs["share"])
            group.add_argument("--prefix", **cache_kwargs["prefix"])
            group.add_argument("--names", **cache_kwargs["names"])
            group.add_argument("--pair", **cache_kwargs["pair"])
            group.add_argument("--backend", **cache_kwargs["backend"])
            group.add_argument("--old", **cache_kwargs["old"])
            group.add_argument("--seed", **cache_kwargs["seed"])
            group.add_argument("--load", choices=[f.value for f in Format])
            loose = get_kwargs(CacheConfig)["everything"]
            loose["type"] = lambda s: s.lower().replace("-", "_")
            loose["choices"] += ["more_of_it"]
            group.add_argument("--loose", **loose)
            vllm_kwargs = get_kwargs(VllmConfig)
            vllm_kwargs["cache_config"]["type"] = print
            group.add_argument("--cache-config", "-cc", **vllm_kwargs["cache_config"])
            group.add_argument("--extra", **{**vllm_kwargs["extra"], "default": None})
            return parser

    class AsyncEngineArgs(EngineArgs):
        @staticmethod
        def add_cli_args(parser, async_args_only=False):
            if not async_args_only:
                parser = EngineArgs.add_cli_args(parser)
            parser.add_argument("--log", action=argparse.BooleanOptionalAction)
            return parser
"""
CLI_ARGS = """
    from dataclasses import dataclass
    from vllm.engine.arg_utils import AsyncEngineArgs, get_kwargs
    from vllm.utils import FlexibleArgumentParser

    @dataclass
    class FrontendArgs:
        host: str | None = None
        allowed_origins: list[str] = None

        @classmethod
        def _customize(cls, kwargs):
            del kwargs["allowed_origins"]["nargs"]
            return kwargs

        @classmethod
        def add_cli_args(cls, parser):
            kwargs = cls._customize(get_kwargs(cls))
            for key, value in kwargs.items():
                parser.add_argument(f"--{key.replace('_', '-')}", **value)
            return parser

    def make_arg_parser(parser: FlexibleArgumentParser):
        parser.add_argument("model_tag", nargs="?")
        parser = FrontendArgs.add_cli_args(parser)
        return AsyncEngineArgs.add_cli_args(parser)
"""
SERVE = """
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils import FlexibleArgumentParser

    class ServeSubcommand:
        name = "serve"

        def subparser_init(self, subparsers):
            return make_arg_parser(subparsers.add_parser("serve"))
"""
FILES = {
    "vllm/__init__.py": "", "vllm/utils.py": UTILS, "vllm/config.py": CONFIG,
    "vllm/engine/arg_utils.py": ARGS, "vllm/entrypoints/openai/cli_args.py": CLI_ARGS,
    "vllm/entrypoints/cli/serve.py": SERVE,
}  # fmt: skip


def taken(folder: Path, files: dict[str, str], engine: str = "vllm", server: int = 0) -> Taken:
    """What a server of written sources takes."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    facts = engines.facts(engine)
    opened = source.of_folder(
        engine, folder, version="1.0", kind="folder", origin="", package=engine
    )
    found = options.read(opened, facts, facts.servers[server])
    assert found is not None
    return found


@pytest.fixture
def read(tmp_path: Path) -> Taken:
    return taken(tmp_path, FILES)


def test_every_option_is_found_through_functions_fields_and_loops(read: Taken) -> None:
    assert read.whole
    assert {each.name for each in read.options} == {
        "--help", "--host", "--allowed-origins", "--model", "--kv-cache-dtype", "--everything", "--share",
        "--prefix", "--names", "--pair", "--backend", "--old", "--seed", "--load", "--loose",
        "--cache-config", "--extra", "--log",
    }  # fmt: skip
    assert [each.name for each in read.positionals] == ["model_tag"]


@pytest.mark.parametrize(
    ("name", "values", "choices"),
    [
        ("--kv-cache-dtype", "one", ("auto", "fp8")),
        ("-kv", "one", ("auto", "fp8")),
        ("--everything", "one", ("all", "auto", "fp8", "None")),
        ("--loose", "one", ("all", "auto", "fp8", "None", "more_of_it")),
        ("--prefix", "none", None),
        ("--no-prefix", "none", None),
        ("--no-log", "none", None),
        ("--names", "some", None),
        ("--allowed-origins", "one", None),
        ("--backend", "one", None),  # any text is taken, the literal only suggests
        ("--load", "one", ("auto", "dummy")),
    ],
)
def test_what_an_option_takes_follows_from_its_field(
    read: Taken, name: str, values: str, choices: tuple[str, ...] | None
) -> None:
    option = read.table[name]
    assert (option.values, option.choices) == (values, choices)


def test_counts_types_keys_and_words_of_warning(read: Taken) -> None:
    table: dict[str, Option] = read.table
    assert table["--pair"].count == 2
    assert (table["--share"].type, table["--seed"].type, table["--seed"].optional) == (
        "float",
        "int",
        True,
    )
    assert table["--cache-config"].keys is not None
    assert set(table["--cache-config"].keys) >= {"seed", "cache_dtype"}
    assert "hidden" not in table["--cache-config"].keys
    assert table["--old"].deprecated
    assert not table["--prefix"].deprecated
    assert table["--seed"].place == "vllm/engine/arg_utils.py:26"


def test_rules_are_those_of_the_parsers_class(tmp_path: Path) -> None:
    assert taken(tmp_path / "a", FILES).rules == options.Rules(
        underscores=True, dotted=True, plus=True, level=True
    )
    plain = "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser):\n    pass\n"
    rules = taken(tmp_path / "b", {**FILES, "vllm/utils.py": plain}).rules
    assert rules == options.Rules()


def test_what_becomes_of_the_model_as_an_option(tmp_path: Path) -> None:
    said = '"give the model as a positional argument, not as --model"'
    for number, (code, rule) in enumerate(
        [
            (f"raise ValueError({said})", "refused"),
            (f"logger.warning({said})", "deprecated"),
            ("pass", ""),
        ]
    ):
        utils = UTILS.replace("for arg in args:", f"{code}\n            for arg in args:")
        files = {**FILES, "vllm/utils.py": utils}
        assert taken(tmp_path / f"{number}", files).rules.model == rule
        # Without a subcommand, `--model` is the only way.
        assert taken(tmp_path / f"{number}", files, server=1).rules.model == ""


def test_switches_of_a_class_of_its_own_pair_enable_and_disable(tmp_path: Path) -> None:
    own = (
        UTILS
        + """
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register("action", argparse.BooleanOptionalAction, Paired)

    class Paired(argparse.BooleanOptionalAction):
        _pairs = {"--enable-": "--disable-"}
"""
    )
    changed = ARGS.replace('"--log"', '"--enable-log"')
    files = {**FILES, "vllm/utils.py": own, "vllm/engine/arg_utils.py": changed}
    found = taken(tmp_path / "a", files)
    assert {"--enable-log", "--no-enable-log", "--disable-log"} <= set(found.table)
    blind = own.replace('_pairs = {"--enable-": "--disable-"}', "_pairs = made()")
    assert not taken(tmp_path / "b", {**files, "vllm/utils.py": blind}).whole


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"--log"', "NAMES[0]"),
        ('parser.add_argument("--log"', 'for n in names(): parser.add_argument(n'),
        ("return parser\n", "return plugin.extend(parser)\n"),
        ("cache_kwargs = get_kwargs(CacheConfig)", "cache_kwargs = (("),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_no_absence(tmp_path: Path, old: str, new: str) -> None:
    changed = ARGS.replace(old, new)
    assert changed != ARGS
    found = taken(tmp_path, {**FILES, "vllm/engine/arg_utils.py": changed})
    assert not found.whole


def test_lmdeploys_helpers_are_followed(tmp_path: Path) -> None:
    files = {
        "lmdeploy/__init__.py": "",
        "lmdeploy/cli/__init__.py": "",
        "lmdeploy/cli/cli.py": """
            import argparse
            class CLI:
                parser = argparse.ArgumentParser(prog='lmdeploy')
                subparsers = parser.add_subparsers(title='Commands')
        """,
        "lmdeploy/cli/utils.py": """
            class ArgumentHelper:
                @staticmethod
                def device(parser, default: str = 'cuda', choices=['cuda', 'ascend']):
                    return parser.add_argument('--device', default=default, choices=choices)

                @staticmethod
                def tp(parser):
                    return parser.add_argument('--tp', type=int)
        """,
        "lmdeploy/cli/serve.py": """
            from .cli import CLI
            from .utils import ArgumentHelper
            class SubCliServe:
                parser = CLI.subparsers.add_parser('serve')
                subparsers = parser.add_subparsers()

                @staticmethod
                def add_parser_api_server():
                    parser = SubCliServe.subparsers.add_parser('api_server')
                    parser.add_argument('model_path')
                    group = parser.add_argument_group('engine')
                    tp_act = ArgumentHelper.tp(group)
                    ArgumentHelper.device(group)
                    group._group_actions.append(tp_act)
        """,
    }
    found = taken(tmp_path, files, "lmdeploy")
    assert found.whole
    assert set(found.table) == {"-h", "--help", "--tp", "--device"}
    assert found.table["--device"].choices == ("cuda", "ascend")
