"""Every error a user can meet: one class an exit code, and a message of what, why and what next."""

from __future__ import annotations

from typing import Any, ClassVar


class DspatchError(Exception):
    """An expected failure: what happened, why, and the next command or step to try."""

    exit_code: ClassVar[int] = 1
    # Whether it is the verdict on a result that has been printed: stdout gets one object with --json.
    follows_result: ClassVar[bool] = False

    def __init__(self, what: str, *, why: str = "", next: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        # What `--json` prints beside the words, when a result goes with the error.
        self.details: dict[str, Any] = {}

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The error as the object that `--json` prints."""
        return {
            **self.details,
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "what": self.what,
            "why": self.why,
            "next": self.next,
        }


# 2 is click's own code for a wrong command line.


class UnknownEngineError(DspatchError):
    """The engine is none that dspatch patches."""

    exit_code = 10


class UnknownRevisionError(DspatchError):
    """The revision exists neither as a pin nor upstream."""

    exit_code = 11


class UnpinnedRevisionError(DspatchError):
    """The revision exists upstream but has no pin."""

    exit_code = 12


class UnknownVariantError(DspatchError):
    """The variant, or the config.json, matches no DeepSeek model that was published."""

    exit_code = 13


class UncomputableError(DspatchError):
    """The engine of this release cannot compute the model, and its patched code says why."""

    exit_code = 14
    follows_result = True


class HashMismatchError(DspatchError):
    """A file's bytes are not those that the pin names."""

    exit_code = 20


class DownloadError(DspatchError):
    """A file could not be fetched whole."""

    exit_code = 21


class OfflineError(DspatchError):
    """The network is not reachable and the cache does not hold the file."""

    exit_code = 22


class DiskFullError(DspatchError):
    """There is no room left on the disk for what the stage writes."""

    exit_code = 23


class UnsafeArchiveError(DspatchError):
    """An archive holds a member that would land outside its folder."""

    exit_code = 24


class IncompatibleBaseError(DspatchError):
    """A base wheel cannot run on this machine: Python, platform, glibc or libstdc++."""

    exit_code = 25


class PinError(DspatchError):
    """A pin file cannot be read or written."""

    exit_code = 26


class NotWritableError(DspatchError):
    """A file or folder may not be written: the disk is read-only, or belongs to somebody else."""

    exit_code = 27


class LeakError(DspatchError):
    """A server under steady load grew, or its late answers were not its early ones."""

    exit_code = 28
    follows_result = True


class ProfileError(DspatchError):
    """An engine did not profile itself, or what it left is no trace."""

    exit_code = 29


class GitError(DspatchError):
    """A git command failed."""

    exit_code = 30


class PatchFormatError(DspatchError):
    """A patch.toml, traits.toml or series file is malformed."""

    exit_code = 31


class TemplateError(DspatchError):
    """A template is malformed or names an undefined value."""

    exit_code = 32


class EditError(DspatchError):
    """A semantic edit did not find its place, or found it more than once."""

    exit_code = 33


class PatchConflictError(DspatchError):
    """A patch does not apply to this checkout."""

    exit_code = 34


class EditedTreeError(DspatchError):
    """A job's tree was edited by hand and would be overwritten."""

    exit_code = 35


class NoJobError(DspatchError):
    """A stage was asked for before the stage that it builds on."""

    exit_code = 36


class LockedError(DspatchError):
    """Another dspatch process holds the cache or the job."""

    exit_code = 37


class SignatureDriftError(DspatchError):
    """A patch applies, but an upstream symbol that its code uses is not what it was written for."""

    exit_code = 38


class RebaseStoppedError(DspatchError):
    """A rebase stopped at a conflict and waits for its resolution."""

    exit_code = 39


class NativeSourceError(DspatchError):
    """An overlay was asked to change sources that need a compiler."""

    exit_code = 40


class BaseDiffersError(DspatchError):
    """A base wheel differs from the pinned source in ways nobody accepted."""

    exit_code = 41


class WheelError(DspatchError):
    """A wheel is malformed or could not be built."""

    exit_code = 42


class WheelVerifyError(DspatchError):
    """A wheel is not what its record, its pedigree or its base wheel say."""

    exit_code = 43


class DiffFormatError(DspatchError):
    """A diff, or a patch in mail form, cannot be read."""

    exit_code = 44


class PatchLintError(DspatchError):
    """`patch lint` found faults in the series."""

    exit_code = 45
    follows_result = True


class ClaimError(DspatchError):
    """What the documentation claims of a patch is not what was measured."""

    exit_code = 46


class DeltaError(DspatchError):
    """A delta does not fit the installed wheel that it was to change."""

    exit_code = 47


class MirrorError(DspatchError):
    """A mirror could not be written, or lacks what a job needs."""

    exit_code = 48


class ExportDriftError(DspatchError):
    """An exported folder is not what the patches give."""

    exit_code = 49


class EngineEnvironmentError(DspatchError):
    """The engine's or the oracle's environment could not be made."""

    exit_code = 50


class EngineError(DspatchError):
    """The engine did not start or stopped while it ran."""

    exit_code = 51


class CheckpointError(DspatchError):
    """A checkpoint could not be made or read; `foreign` says that it is of no DeepSeek model."""

    exit_code = 52

    def __init__(self, what: str, *, why: str = "", next: str = "", foreign: bool = False) -> None:
        super().__init__(what, why=why, next=next)
        self.foreign = foreign


class NoGpuError(DspatchError):
    """A stage needs an NVIDIA GPU and there is none."""

    exit_code = 53


class MissingToolsError(DspatchError):
    """A build from source needs something that this machine lacks."""

    exit_code = 54


class SourceBuildError(DspatchError):
    """Upstream's build failed."""

    exit_code = 55


class LoadError(DspatchError):
    """Requests of a load failed, or the load could not be made."""

    exit_code = 56
    follows_result = True


class ServerError(DspatchError):
    """No OpenAI-compatible server answers at an address, or it lets nobody in."""

    exit_code = 57


class NotServedError(DspatchError):
    """A server was asked for a model that it does not serve."""

    exit_code = 58


class BisectError(DspatchError):
    """A bisection cannot begin, or found no change between its ends."""

    exit_code = 59


class ConformanceError(DspatchError):
    """The engine does not compute what the oracle computes."""

    exit_code = 60
    follows_result = True


class AuditError(DspatchError):
    """An audit found what its threshold does not allow, or the recorded ranges no longer hold."""

    exit_code = 61
    follows_result = True


class NoToleranceError(DspatchError):
    """Nobody has measured what the checks accept in a dtype."""

    exit_code = 62


class CalibrationError(DspatchError):
    """An engine whose numbers were to be taken for noise is not sound."""

    exit_code = 65


class ServeFlagsError(DspatchError):
    """A command line, a dashboard or a rule asks for what a release has not, or the record no longer holds."""

    exit_code = 66
    follows_result = True


class ServeWordsError(DspatchError):
    """A command line names no server, or a file holds no queries, so that nothing can be checked."""

    exit_code = 67


class LogError(DspatchError):
    """A log is not there, or is none."""

    exit_code = 63


class EmptyLogError(LogError):
    """A log has nothing in it."""

    exit_code = 64


class DoctorError(DspatchError):
    """A log, or the machine, shows causes of a failure."""

    exit_code = 68
    follows_result = True


class UnknownCauseError(DoctorError):
    """A log shows a failure whose cause is none that is known."""

    exit_code = 69


class ProcessError(DspatchError):
    """A command failed."""

    exit_code = 70


class ProcessTimeoutError(DspatchError):
    """A command ran past its time limit."""

    exit_code = 71


class OutputFormatError(DspatchError):
    """An output format cannot be read, contradicts itself, or the engine has no patch that takes one."""

    exit_code = 73


class ParallelError(DspatchError):
    """A model cannot be split among so many processes."""

    exit_code = 72


class FalseAlarmError(DspatchError):
    """Checks of conformance failed an engine that is said to be sound."""

    exit_code = 74
    follows_result = True
