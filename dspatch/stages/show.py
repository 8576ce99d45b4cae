"""Results of the stages as tables, plain lines, and the objects that --json prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch import series as series_module
    from dspatch.apply import PatchedTree
    from dspatch.conformance import Report
    from dspatch.job import Job
    from dspatch.pins import Pin
    from dspatch.pins.add import Added
    from dspatch.stages.apply import Applied
    from dspatch.stages.build import Built
    from dspatch.stages.pipeline import Done
    from dspatch.stages.proving import Proven
    from dspatch.stages.request import Resolved
    from dspatch.wheel.plan import Difference
    from dspatch.wheel.verify import Verification


def applied(done: Applied, console: Console) -> None:
    """The series as it was applied."""
    from dspatch.stages.apply import checkout_facts, statistics

    if not console.as_json:
        plan(done.tree, console)
        state = "patched" if done.changed else "already patched, nothing to do"
        where = relative(done.job.tree)
        console.say(f"{done.job.id}: {state}; tree {done.tree.tree[:12]} in {where}")
        return
    console.result(
        {
            "job": str(done.job.id),
            "path": done.job.tree,
            "changed": done.changed,
            "commit": done.tree.commit,
            "tree": done.tree.tree,
            "checkout": checkout_facts(done.tree.checkout),
            "series": plan_rows(done.tree),
            "patches": statistics(done.tree),
        }
    )


def plan(tree: PatchedTree, console: Console) -> None:
    """Which patches a checkout needs, and why the others are not for it."""
    from dspatch.stages.apply import statistics

    if console.as_json:
        return
    counts = {row["patch"]: row for row in statistics(tree)}
    how = _how(tree)
    rows = []
    for item in tree.plan:
        row = counts.get(item.patch.name)
        size = f"+{row['added']} -{row['removed']}, {_files(len(row['files']))}" if row else ""
        by = how.get(item.patch.name, "rendered")
        size += f", {by}" if by != "rendered" else ""
        said = "; ".join(filter(None, (size, item.why))) or item.patch.subject
        rows.append((item.patch.name, item.status, said))
    console.table(("PATCH", "STATUS", ""), rows)


def planned(tree: PatchedTree, console: Console) -> None:
    """`patch list --rev`: the plan as the whole result."""
    plan(tree, console)
    console.result(plan_rows(tree))


def plan_rows(tree: PatchedTree) -> list[dict[str, str]]:
    """The plan as `--json` prints it."""
    how = _how(tree)
    return [
        {"patch": p.patch.name, "status": p.status, "why": p.why, "how": how.get(p.patch.name, "")}
        for p in tree.plan
    ]


def _how(tree: PatchedTree) -> dict[str, str]:
    """How each patch came onto a tree, for those that did."""
    return {patch.name: patch.how for patch in tree.patches}


def dry_run(resolved: Resolved, tree: PatchedTree, console: Console) -> None:
    """The diffs of the series, one after the other, as `git apply` takes them."""
    from dspatch.stages.apply import statistics

    for patch in tree.patches:
        console.say(tree.diff(patch).rstrip("\n"))
    console.result(
        {
            "job": str(resolved.job.id),
            "tree": tree.tree,
            "series": plan_rows(tree),
            "patches": statistics(tree),
            "diff": "".join(tree.diff(patch) for patch in tree.patches),
        }
    )


def built(done: Built, console: Console) -> None:
    """The wheel and what it was made of."""
    wheel = done.receipt["wheel"]
    console.say(relative(done.path))
    size = done.path.stat().st_size / 1e6
    console.say(f"  {wheel['name']} {done.version}, {size:.1f} MB, sha256 {done.sha256}")
    console.say(f"  base {done.base.filename}: {wheel['raw_members']} members as they were")
    console.result(wheel_object(done))


def wheel_object(done: Built) -> dict[str, Any]:
    """A built wheel as --json prints it."""
    return {**done.receipt, "job": str(done.job.id), "cached": done.cached, "path": done.path}


def proven(done: Proven, console: Console) -> None:
    """The report, then the error that it amounts to when a check failed."""
    from dspatch.conformance import selftest
    from dspatch.stages.proving import check

    if done.selftest is not None:
        console.table(selftest.HEADERS, selftest.rows(done.selftest))
    report_summary(done.report, console)
    console.say(f"report: {', '.join(relative(path) for path in done.files)}")
    whole = done.selftest.as_dict() if done.selftest else done.report.as_dict()
    console.result({"job": done.name, "report": whole, "files": done.files})
    check(done)


def report_summary(report: Report, console: Console) -> None:
    """A row a model, what did not pass, and the counts; the files of the report have every check."""
    from dspatch.conformance import render

    console.table(render.COLUMNS, render.summary(report))
    for remark in render.remarks(report):
        console.say(remark)
    for diagnosis in report.diagnoses:
        console.say("\n".join(["", *diagnosis.lines()]))
    console.say(f"conformance: {report.summary}")


def whole_run(done: Done, console: Console) -> None:
    """A run from pin to report: the series, the wheel, the report, and the time each stage took."""
    from dspatch.stages.proving import check

    plan(done.applied.tree, console)
    report_summary(done.proven.report, console)
    console.say(f"wheel:  {relative(done.built.path)}")
    page = next(path for path in done.proven.files if path.suffix == ".html")
    console.say(f"report: {relative(page)}")
    console.say(
        "time:   " + ", ".join(f"{stage} {took:.1f} s" for stage, took in done.seconds.items())
    )
    console.result(
        {
            "job": str(done.applied.job.id),
            "series": plan_rows(done.applied.tree),
            "wheel": {
                "path": done.built.path,
                "sha256": done.built.sha256,
                "version": done.built.version,
            },
            "report": done.proven.report.as_dict(),
            "seconds": done.seconds,
        }
    )
    check(done.proven)


def status(jobs: Sequence[Job], console: Console) -> None:
    """Every job and the state of its stages."""
    from dspatch.stages.status import states

    found = {str(job.id): states(job) for job in jobs}
    rows = [(name, s.stage, s.state, s.detail) for name, all_ in found.items() for s in all_]
    if not rows:
        console.say("no job yet; start with: dspatch run --engine vllm --rev v0.27.1 --target cpu")
    console.table(("JOB", "STAGE", "STATE", ""), rows)
    console.result({name: [asdict(s) for s in all_] for name, all_ in found.items()})


def pins(found: Sequence[Pin], console: Console) -> None:
    """The pins, one line each."""
    rows = []
    for pin in found:
        torch = sorted({base.torch for base in pin.bases if base.torch})
        kinds = ", ".join(dict.fromkeys(source.kind for source in pin.sources))
        targets = ", ".join([*pin.targets, *(f"{each.target} (compiled)" for each in pin.builds)])
        rows.append((pin.engine, pin.rev, targets, kinds, ", ".join(torch)))
    console.table(("ENGINE", "REV", "TARGETS", "SOURCES", "TORCH"), rows)
    console.result([pin.as_dict() for pin in found])


def pin_added(done: Added, console: Console) -> None:
    """The pin that was written, and where base wheel and source differ."""
    for wheel, differences in done.differences.items():
        console.say(f"{wheel} differs from the source, for reasons that are declared:")
        for reason, paths in _by_reason(differences).items():
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            console.say(f"  {', '.join(paths[:3])}{more}: {reason}")
    for note in done.notes:
        console.say(f"note: {note}")
    console.say(f"{done.pin.engine} {done.pin.rev} is pinned in {relative(done.path)}")
    console.result(done.as_dict())


def _by_reason(differences: Sequence[Difference]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for one in differences:
        grouped.setdefault(one.reason, []).append(one.path)
    return grouped


def pin(found: Pin, console: Console) -> None:
    """One pin in full."""
    console.say(
        f"{found.engine} {found.rev}, commit {found.commit or 'unknown'}, Python {found.requires_python}"
    )
    for source in found.sources:
        console.say(f"  source  {source.kind}: {source.filename or source.commit}")
        if source.sha256:
            console.say(f"          sha256 {source.sha256}, {source.size} bytes")
    for base in found.bases:
        console.say(f"  base    {base.target}: {base.filename}")
        console.say(f"          sha256 {base.sha256}, {base.size} bytes")
        needs = [base.torch or "torch unknown", f"glibc {base.glibc}", f"GLIBCXX {base.glibcxx}"]
        console.say(f"          needs {', '.join(needs)}")
        for accepted in base.accepted:
            console.say(f"          accepted {accepted.path}: {accepted.reason}")
        for bound in (*base.bounds, *base.overrides):
            console.say(f"          asks for {bound.requirement}: {bound.reason}")
    for build in found.builds:
        console.say(f"  build   {build.target}: compiled from source, with torch {build.torch}")
        for bound in build.bounds:
            console.say(f"          {bound.requirement}: {bound.reason}")
    console.result(found.as_dict())


def patches(series: series_module.Series, console: Console) -> None:
    """The patches of an engine, in order."""
    console.table(
        ("PATCH", "TARGETS", "SUBJECT"),
        [(p.name, ", ".join(p.targets), p.subject) for p in series.patches],
    )
    console.result(
        [
            {"patch": p.name, "targets": p.targets, "subject": p.subject, "upstream": p.upstream}
            for p in series.patches
        ]
    )


def patch(
    found: series_module.Patch,
    series: series_module.Series,
    tree: PatchedTree | None,
    console: Console,
) -> None:
    """One patch: why it exists, what it rests on, and its hunks on a revision."""
    from dspatch.stages.apply import statistics

    console.say(f"{found.name}: {found.subject}\n\n{found.reason.strip()}\n")
    console.say(f"targets:   {', '.join(found.targets)}")
    console.say(f"needs:     {', '.join(found.needs) or 'nothing'}")
    console.say(f"upstream:  {found.upstream}")
    console.say(f"drop when: {found.drop_when}")
    console.say(f"folder:    {relative(found.folder)}")
    if found.forms:
        console.say(f"made on:   {', '.join(form.made_on for form in found.forms)}")
    hunks: list[dict[str, Any]] = []
    if tree is not None:
        hunks = [row for row in statistics(tree) if row["patch"] == found.name]
        _hunks(hunks, tree, found.name, console)
    console.result(
        {
            "patch": found.name,
            "subject": found.subject,
            "reason": found.reason,
            "targets": found.targets,
            "needs": found.needs,
            "upstream": found.upstream,
            "drop-when": found.drop_when,
            "sha256": series.patch_digest(found),
            "folder": found.folder,
            "shipped": found.shipped,
            "made-on": [form.made_on for form in found.forms],
            "applied": hunks,
        }
    )


def _hunks(rows: list[dict[str, Any]], tree: PatchedTree, name: str, console: Console) -> None:
    if not rows:
        why = next(item.why for item in tree.plan if item.patch.name == name)
        console.say(f"\nnot applied to {tree.checkout.rev}: {why}")
        return
    console.say(f"\non {tree.checkout.engine} {tree.checkout.rev}:")
    for file in rows[0]["files"]:
        kind = "new file" if file["new"] else f"+{file['added']} -{file['removed']}"
        console.say(f"  {file['path']}: {kind}")
        for hunk in file["hunks"] if not file["new"] else ():
            within = f" in {hunk['within']}" if hunk["within"] else ""
            console.say(f"    line {hunk['at']}: +{hunk['added']} -{hunk['removed']}{within}")


def verified(done: Verification, console: Console) -> None:
    """Every check of a wheel that held."""
    for result in done.results:
        console.say(f"{result.name}: {'ok' if result.passed else 'FAILED'}")
    console.say(f"{relative(done.wheel)}: verified")
    console.result(done.as_dict())


def whether_written(path: Path, changed: bool) -> str:
    """That a file was written, or that there was no need."""
    return f"{relative(path)}: {'written' if changed else 'was up to date'}"


def relative(path: Path) -> str:
    """A path as short as it can be typed from here."""
    short = os.path.relpath(path)
    return short if not short.startswith("..") else str(path)


def _files(count: int) -> str:
    return f"{count} file" + ("s" if count != 1 else "")
