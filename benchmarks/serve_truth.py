"""What an engine's own parser takes, asked of the parser itself: the truth that `dspatch serve flags` is held against.

    python benchmarks/serve_truth.py --rev v0.27.1 --python ENV/bin/python --out docs/proofs/serve-parsers.json

The Python of the release is read by range into a folder, in front of what `--python` has installed
(`--extra FOLDER`: and of what else it imports), and its parser is built there and listed. The compiled
parts are not needed for that. Adds the release to the file of `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from dspatch import pins
from dspatch.audit.origins import published
from dspatch.carry.remote.ranges import Traffic

WORKER = """
import importlib, json, sys
engine = sys.argv[1]
sys.argv = [engine, "serve"]
if engine == "vllm":
    try:  # releases of 2024 import names that later tritons have not
        import triton.runtime.cache as cache
        for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
            if not hasattr(cache, name):
                setattr(cache, name, lambda: "")
    except ImportError:
        pass
    def found(*places):
        for place in places:
            module, _, name = place.partition(":")
            try:
                return getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                pass
        raise SystemExit(f"none of {places} is there")
    make = found("vllm.entrypoints.openai.cli_args:make_arg_parser", "vllm.entrypoints.cli.serve:make_arg_parser")
    kind = found("vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser")
    parser = make(kind())
    variables = sorted(importlib.import_module("vllm.envs").environment_variables)
else:
    from lmdeploy.cli.serve import SubCliServe
    SubCliServe.add_parser_api_server()
    parser, variables = SubCliServe.subparsers.choices["api_server"], []
options = {}
for name, action in parser._option_string_actions.items():
    choices = None if action.choices is None else sorted(str(each) for each in action.choices)
    options[name] = {"nargs": action.nargs, "choices": choices}
print("TRUTH" + json.dumps({"options": options, "variables": variables}))
"""


def sources(engine: str, rev: str, folder: Path) -> str:
    """Write a release's Python, and metadata that say "cpu", into a folder; its version."""
    with published(engine, rev, Traffic()) as source:
        package = f"{pins.engine(engine).package}/"
        for path in source.files.paths():
            if path.startswith(package) and path.endswith((".py", ".json")):
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(source.read(path) or b"")
        info = folder / f"{engine}-{source.version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {engine}\nVersion: {source.version}+cpu\n"
        (info / "METADATA").write_text(text)
        return str(source.version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--rev", action="append", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--extra", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for rev in given.rev:
        with tempfile.TemporaryDirectory() as folder:
            version = sources(given.engine, rev, Path(folder))
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, given.extra])}
            command = [given.python, "-c", WORKER, given.engine]
            done = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, check=False
            )
        told = next((line for line in done.stdout.splitlines() if line.startswith("TRUTH")), "")
        if not told:
            raise SystemExit(f"{version}: {done.stderr[-800:]}")
        known = json.loads(given.out.read_text()) if given.out.is_file() else {}
        known.setdefault(given.engine, {})[version] = json.loads(told.removeprefix("TRUTH"))
        given.out.write_text(json.dumps(known, indent=None, sort_keys=True) + "\n")
        print(version, len(json.loads(told.removeprefix("TRUTH"))["options"]))


if __name__ == "__main__":
    main()
