"""Jobs and receipts: named by what they are, and nothing read from a file that somebody changed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dspatch import job, paths, receipt
from dspatch.errors import LockedError, NoJobError
from dspatch.stages import status

ID = job.JobId(engine="vllm", rev="1.0", target="cpu")


def test_an_id_names_the_job() -> None:
    assert str(ID) == "vllm-1.0-cpu-deepseek"
    one = job.JobId(engine="vllm", rev="feature/x", target="cuda", variants=("deepseek-v3",))
    assert str(one) == "vllm-feature-x-cuda-deepseek-v3"
    asked = replace(ID, extra=("a-patch",), format="acme")
    assert str(asked) == "vllm-1.0-cpu-deepseek-with-a-patch-as-acme"
    mine = job.open_job(asked)
    receipt.write(mine, "apply", {})
    assert job.find(replace(asked, rev="v1.0")) == mine
    assert job.find(replace(ID, rev="v1.0")) is None


def test_a_receipt_is_read_back_and_a_changed_one_is_none() -> None:
    mine = job.open_job(ID)
    receipt.write(mine, "apply", {"patches": ("a", "b")})
    found = receipt.read(mine, "apply")
    assert found is not None
    assert found["patches"] == ["a", "b"]
    path = mine.receipt("apply")
    whole = path.read_text()
    for changed in (whole.replace('"a"', '"c"'), whole[:-20], "[]", "", "{}"):
        path.write_text(changed)
        assert receipt.read(mine, "apply") is None
        with pytest.raises(NoJobError, match="or its receipt was changed"):
            receipt.require(mine, "apply")
        assert status.states(mine)[0].state == "not run"


def test_the_last_job_is_remembered_and_a_damaged_note_is_no_job() -> None:
    with pytest.raises(NoJobError):
        job.last()
    job.prepare_work()
    job.remember(job.open_job(ID))
    assert job.last().id == ID
    for damaged in ("{}", "null", "{", json.dumps({"engine": 1})):
        (paths.work() / "last-job.json").write_text(damaged)
        with pytest.raises(NoJobError):
            job.last()


def test_all_jobs_leaves_out_what_it_cannot_name() -> None:
    mine = job.open_job(ID)
    receipt.write(mine, "apply", {})
    (paths.work() / "jobs/x/receipts").mkdir(parents=True)
    (paths.work() / "jobs/x/receipts/apply.json").write_text("{")
    assert [one.id for one in job.all_jobs()] == [ID]


def test_a_locked_job_is_refused_at_once() -> None:
    mine = job.open_job(ID)
    with mine.locked(), pytest.raises(LockedError), mine.locked():
        pass


def test_the_work_folder_ignores_itself() -> None:
    job.prepare_work()
    assert (paths.work() / ".gitignore").read_text() == "*\n"
