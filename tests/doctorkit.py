"""What tests of the doctor share: its knowledge, the logs that are kept, and a log examined without a machine."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from dspatch import variants
from dspatch.audit.select import Model, User
from dspatch.audit.signature import Signature
from dspatch.serve.doctor import cause, diagnose, lines, reading
from dspatch.serve.doctor.cause import Cause
from dspatch.serve.doctor.diagnose import Diagnosis, Dropped, Stated
from dspatch.serve.doctor.facts import Facts
from dspatch.serve.doctor.reading import Reading

LOGS = Path(__file__).parent / "data" / "logs"


@cache
def known() -> tuple[Cause, ...]:
    """All causes, read once."""
    return cause.load_all()


def signatures() -> list[tuple[Cause, Signature]]:
    """Every signature with its cause."""
    return [(each, one) for each in known() for one in each.signatures]


def kept() -> dict[str, dict[str, str]]:
    """The logs that are kept: what each must show, and what ran."""
    return tomllib.loads((LOGS / "logs.toml").read_text(encoding="utf-8"))


def read(path: Path) -> Reading:
    """A log, read whole."""
    with lines.opened(str(path)) as log:
        return reading.read(log, known())


def examined(
    path: Path, facts: Facts | None = None, version: str | None = None
) -> tuple[tuple[Diagnosis, ...], tuple[Dropped, ...]]:
    """The causes of a log, as the engine and release that it states can have them."""
    done = read(path)
    said = done.recognised
    everyone = tuple(Model(variant=each) for each in variants.table().values())
    stated = Stated(
        engine=said.engine,
        version=version or said.version,
        user=User(models=everyone, target=said.target),
        facts=facts or Facts(),
    )
    return diagnose.of_log(done, stated)
