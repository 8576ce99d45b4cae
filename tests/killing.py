"""Commands to be killed, what each may leave behind, and what the next run must make of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dspatch.carry.editing import folder
from dspatch.series import digest_of
from tests.integration.rebasekit import files_of
from tests.integration.rebasekit import release as publish
from tests.integration.test_flow import Bench
from tests.support import PATCH, PLATFORM, REGISTRY, TEMPLATE, TRAITS, git, repository, write_form
from tests.unit.index_server import serve
from tests.zygote import Ended, Zygote

LINES = [f"value_{number} = {number}\n" for number in range(60)]
OWNED = ("data", "work/patches", "work/templates", "exported")


def text(*changed: tuple[int, str]) -> str:
    lines = list(LINES)
    for number, line in changed:
        lines[number] = line
    return "".join(lines)


BASE: dict[str, str | None] = {
    "vllm/platform.py": PLATFORM,
    "vllm/registry.py": REGISTRY,
    **{f"vllm/{name}.py": text() for name in ("strict", "merging", "mine", "new")},
}
NEWER = BASE | {"vllm/merging.py": text((18, "value_18 = 'theirs'\n"))}
CHANGED = {
    name: (BASE | {f"vllm/{name}.py": text((20, "value_20 = 'patched'\n"))})
    for name in ("strict", "merging", "mine", "new")
}


@dataclass(frozen=True, kw_only=True)
class Action:
    """A command to be killed, what it starts from, and the job whose tree it moves."""

    name: str
    words: tuple[str, ...]
    job: str = "vllm-2.0-cpu-deepseek"
    prepare: Callable[[Scene], object] = lambda scene: None
    # Started again after it ended, it would say that there is nothing to do, or that it was done.
    once: bool = False


V2 = ("--engine", "vllm", "--rev", "v2.0")
ACTIONS = (
    Action(name="apply", words=("apply", *V2), prepare=lambda scene: scene.take_mine_out()),
    Action(name="apply-cold", words=("apply", *V2), prepare=lambda scene: scene.forget()),
    Action(name="unapply", words=("unapply", *V2), once=True),
    Action(name="build-wheel", words=("build-wheel", *V2)),
    Action(name="export", words=("patch", "export", *V2, "-o", "exported")),
    Action(
        name="import",
        words=("patch", "import", "new.diff", *V2, "--reason", "It is new.", "--upstream", "never: a test"),
        once=True,
    ),
    Action(name="refresh", words=("patch", "refresh", *V2), prepare=lambda scene: scene.edit(), once=True),
    Action(
        name="rebase", words=("patch", "rebase", "--rev", "v1.0", "--onto", "v2.0"),
        prepare=lambda scene: scene.take_tree_away(),
    ),
)  # fmt: skip


@dataclass
class Scene:
    """A small engine with two releases and patches of all kinds, an applied job, and a full cache."""

    root: Path
    bench: Bench
    zygote: Zygote
    new: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    fault: str | None = None

    def restore(self, action: Action) -> None:
        """Everything as it was before the command, but for what the cache has learnt."""
        for name in ("work", "data", "exported"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        shutil.copytree(self.root / "kept", self.root, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(self.root / "cache/applied", ignore_errors=True)
        action.prepare(self)

    def owned(self) -> str:
        """What the user calls his own: patches, templates, exports."""
        return digest_of([self.root / name for name in OWNED if (self.root / name).exists()])

    def tree(self, action: Action) -> str:
        """The tree that the job stands at, with every edit in it."""
        tree = self.root / "work/jobs" / action.job / "tree"
        if not (tree / ".git/HEAD").exists():
            return ""
        return git(tree, "rev-parse", "HEAD^{tree}") + git(tree, "status", "--porcelain")

    def take_mine_out(self) -> None:
        """The patches on disk are others than those that were applied."""
        (self.root / "work/patches/vllm/series").write_text("")
        shutil.rmtree(self.root / "work/patches/vllm/mine")

    def take_tree_away(self) -> None:
        shutil.rmtree(self.root / "work/jobs")

    def forget(self) -> None:
        """The cache holds the downloads only."""
        shutil.rmtree(self.root / "cache/git")
        shutil.rmtree(self.root / "work/jobs")

    def edit(self) -> None:
        tree = self.root / "work/jobs/vllm-2.0-cpu-deepseek/tree"
        (tree / "vllm/strict.py").write_text(text((20, "value_20 = 'patched again'\n")))

    def learn(self, action: Action) -> None:
        """What a command leaves when nobody kills it, and how long it takes."""
        self.restore(action)
        done = self.zygote.run(*action.words)
        assert done.code == 0, f"{action.name}: {done.said}"
        self.restore(action)
        done = self.zygote.run(*action.words)
        assert done.code == 0, f"{action.name}: {done.said}"
        self.new[action.name] = (self.owned(), self.tree(action))
        self.seconds[action.name] = done.seconds

    def kill(
        self, action: Action, *, touches: int | None = None, after: float | None = None
    ) -> Ended:
        """Kill a command, look at what it left, and let the next run finish it."""
        self.restore(action)
        old = self.owned()
        done = self.zygote.run(*action.words, touches=touches, after=after, fault=self.fault)
        where = f"{action.name} killed before touch {touches} or after {after} s"
        assert done.code in (0, -9), f"{where}: {done.said}"
        # What every command does first when it reads the patches.
        folder.finish(self.root / "work/patches/vllm")
        new, tree = self.new[action.name]
        owned = self.owned()
        assert owned in (old, new), f"{where}: neither the old state nor the new"
        is_new = owned == new and (done.code == 0 or action.once) and self.tree(action) == tree
        assert is_new or done.code != 0, where
        if is_new:
            return done
        again = self.zygote.run(*action.words)
        if not (action.once and new != old and owned == new):
            assert again.code == 0, f"{where}, then: {again.said}"
        assert self.owned() == new, f"{where}, then not the new state"
        if again.code != 0:  # told that it is done; the tree follows with the next apply
            assert "Traceback" not in again.said, where
            self.zygote.run("apply", *V2)
        assert self.tree(action) == tree, f"{where}, then another tree"
        return done


@contextmanager
def scene(root: Path) -> Iterator[Scene]:
    """Set the scene; no index is asked once it stands."""
    with serve() as index:
        bench = Bench(root, index)
        bench.environment["PYTHONWARNINGS"] = "error"
        publish(bench, "1.0", BASE)
        publish(bench, "2.0", NEWER)
        _write_patches(root)
        bench.run("apply", *V2[:2], "--rev", "v1.0")
        bench.run("apply", *V2)
        bench.run("build-wheel")
        shutil.rmtree(next((root / "work/jobs").glob("vllm-2.0-*/dist")))
        bench.run("patch", "export", *V2, "-o", "exported", "mine")
        for name in ("work", "data", "exported"):
            shutil.copytree(root / name, root / "kept" / name, symlinks=True)
        bench.environment["PIP_INDEX_URL"] = "http://127.0.0.1:1/simple"
    zygote = Zygote(root, bench.environment)
    try:
        yield Scene(root=root, bench=bench, zygote=zygote)
    finally:
        zygote.close()


def _write_patches(root: Path) -> None:
    shipped, own = root / "data/patches/vllm", root / "work/patches/vllm"
    shutil.rmtree(root / "data")
    for place in (shipped / "rendered", own, root / "data/templates/vllm"):
        place.mkdir(parents=True)
    (root / "data/templates/vllm/cpu_mla.py.j2").write_text(TEMPLATE)
    (shipped / "rendered/patch.toml").write_text(PATCH.replace("mini/", "vllm/"))
    (shipped / "traits.toml").write_text(TRAITS.replace("mini/", "vllm/"))
    (shipped / "series").write_text("rendered\nstrict\nmerging\n")
    (own / "series").write_text("mine\n")
    for name in ("strict", "merging", "mine"):
        place = own if name == "mine" else shipped
        write_form(place / name, {"v1.0": _diff(root, name)})
    (root / "new.diff").write_text(_diff(root, "new"))


def _diff(root: Path, name: str) -> str:
    made = root / "made"
    shutil.rmtree(made, ignore_errors=True)
    repository(made, files_of("1.0", BASE))
    (made / f"vllm/{name}.py").write_text(CHANGED[name][f"vllm/{name}.py"] or "")
    return git(made, "diff", "--full-index", "--binary")


def by_name(name: str) -> Action:
    """The action of a name."""
    return next(action for action in ACTIONS if action.name == name)


def at_random(scene: Scene, instants: int, seed: int) -> Iterator[tuple[Action, Ended]]:
    """Kill commands at that many random instants: in turn, the quick ones four times as often."""
    dice = random.Random(seed)
    quick = sorted(ACTIONS, key=lambda action: scene.seconds[action.name])[: len(ACTIONS) // 2]
    turns = [*ACTIONS, *quick, *quick, *quick]
    for number in range(instants):
        action = turns[number % len(turns)]
        # A little longer than it takes, so that its very end is hit too.
        after = dice.uniform(0.0, scene.seconds[action.name] * 1.05)
        yield action, scene.kill(action, after=after)


def at_every_touch(scene: Scene, action: Action, step: int) -> Iterator[Ended]:
    """Kill a command before each touch of the disk and each process, in steps, until it ends."""
    for touches in range(0, 10_000, step):
        done = scene.kill(action, touches=touches)
        yield done
        if done.code == 0:
            return
