"""An environment with a stand-in for LMDeploy, beside the oracle's PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from dspatch.conformance import oracle

HERE = Path(__file__).parent
WORKERS = Path(oracle.__file__).with_name("workers")
METADATA = "Metadata-Version: 2.1\nName: lmdeploy\nVersion: 0.18.0\n"
PARTS = {"turbomind/turbomind.py": "TurboMind", "pytorch/engine.py": "Engine"}
ENGINE = "from lmdeploy.engine import Base\n\n\nclass {name}(Base):\n    pass\n"


def environment(folder: Path) -> Path:
    """The folder of a virtual environment whose `lmdeploy` is the stand-in."""
    judge = oracle.ensure()
    made = folder / "env"
    subprocess.run([judge.python, "-m", "venv", "--without-pip", made], check=True)
    site = next((made / "lib").glob("python3.*/site-packages"))
    torch = next(Path(judge.python).parents[1].glob("lib/python3.*/site-packages"))
    (site / "oracle.pth").write_text(f"{torch}\n{WORKERS}\n")
    package = site / "lmdeploy"
    package.mkdir()
    shutil.copy(HERE / "lmdeploy_init.py", package / "__init__.py")
    shutil.copy(HERE / "engine.py", package / "engine.py")
    for path, name in PARTS.items():
        (package / path).parent.mkdir()
        (package / path).parent.joinpath("__init__.py").touch()
        (package / path).write_text(ENGINE.format(name=name))
    info = site / "lmdeploy-0.18.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    return made


def fake_gpu(folder: Path) -> Path:
    """A folder for PATH in which there is an nvidia-smi, which is all that is looked for."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    return folder
