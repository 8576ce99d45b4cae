"""The routers of LMDeploy's PyTorch engine in every release, stock and patched, beside transformers.

    python -m tests.e2e.proofs.every_router FOLDER > lmdeploy-pytorch-routers.json

Files are read by range and laid into FOLDER; the functions are run as `release_read.py` runs them. Prints JSON: of each
release the router patches that apply, how many files they change (each compiles), and what both trees compute.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dspatch import process
from dspatch.carry.remote import releases
from dspatch.conformance import oracle
from tests.e2e import test_confirmed as confirmed

PATCHES = ("pytorch-v2-softmax-first", "pytorch-router-mask", "pytorch-router-float32")
MODELS = "lmdeploy/pytorch/models/deepseek_v2.py"
# What is run, by the finding whose proof runs it.
ASKED = {
    "v2": "lmdeploy-v2-masks-before-softmax",
    "v3, biases above 2": "lmdeploy-v3-scale-missing",
    "v3, biases below 0 and above 2": "lmdeploy-router-masks-with-zero",
    "v3 in bfloat16": "lmdeploy-router-logits-in-bf16",
}
FILES = (*confirmed.FILES, "lmdeploy/pytorch/nn/moe/route.py")


def patched(folder: Path) -> dict[str, object]:
    """Lay a patched twin beside a release's files; what was applied to it."""
    applied, changed = confirmed.patch_folder("lmdeploy", folder, PATCHES)
    for path in changed:
        compile(path.read_bytes(), path, "exec")
    return {"applied": applied, "compiled": len(changed)}


def computed(folder: Path) -> dict[str, str]:
    """What the routers in a folder compute."""
    script = confirmed.PROOFS / "release_read.py"
    words = f"{folder}:{','.join(ASKED.values())}"
    done = process.run([oracle.ensure().python, script, words], env={"OMP_NUM_THREADS": "1"})
    seen = json.loads(done.stdout)[str(folder)]
    return {name: seen[finding] for name, finding in ASKED.items()}


def main() -> None:
    """Every release that has the model."""
    told = {}
    for release in releases.published("lmdeploy").releases:
        folder = Path(sys.argv[1]) / release.rev
        confirmed.fetch("lmdeploy", release.rev, folder, FILES)
        if (folder / MODELS).is_file():
            made = patched(folder)
            both = {"stock": folder, "patched": confirmed.patched_folder(folder)}
            told[release.rev] = {**made, **{name: computed(at) for name, at in both.items()}}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
