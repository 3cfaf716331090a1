"""Every error that discreet raises on purpose.

The tree::

    DiscreetError
      UserError                          what was asked cannot be done; the command line prints one line, exit code 2
        ConfigError(key, value, expected)
        DataError(path, expected)
        ModelError
        RunFolderError(path, expected)
        Diverged(round, cause)           the run folder keeps the last good round
      RunAborted(round, attempts, cause)   a round between sites failed again and again; resumable likewise
      ProtocolError
        LocalProtocolError               we broke the rules: a bug of ours
        RemoteProtocolError(peer, round, field)   a peer broke them: it is dropped, by name
      RoundAborted(survivors, threshold)   too few clients are left to finish a secure sum; nothing is revealed

Messages name the key, file or shape at fault and say what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class DiscreetError(Exception):
    """Root of the tree: catching it catches everything that discreet raises on purpose."""


class UserError(DiscreetError):
    """Something in what the user asked; its text is one line, fit for a terminal."""


class ConfigError(UserError):
    """An experiment has an unknown key or an impossible value.

    Attributes:
        key: dotted path of the key, as in ``scheme.learning_rate``.
        value: what stood there.
        expected: what would be right.
    """

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key, self.value, self.expected = key, value, expected
        super().__init__(f"{key} = {value!r}: expected {expected}")


class UnknownKey(ConfigError):
    """An experiment has a key that does not exist."""

    def __init__(self, key: str, expected: str) -> None:
        super().__init__(key, None, expected)
        self.args = (f"unknown key {key!r}: {expected}",)


class MissingExtra(ConfigError):
    """What was asked for needs a package that is not installed with discreet unless it is asked for."""

    def __init__(self, key: str, value: object, extra: str) -> None:
        super().__init__(key, value, f"an installation with the extra {extra}")
        self.args = (f"{key} = {value!r}: needs {extra}: pip install 'discreet[{extra}]'",)


class DataError(UserError):
    """A data file is missing, damaged, or does not hold what was asked for.

    Attributes:
        path: the file, folder or data set at fault.
        expected: what is wrong with it and what would be right.
    """

    def __init__(self, path: object, expected: str) -> None:
        self.path, self.expected = str(path), expected
        super().__init__(f"{path}: {expected}")


class ModelError(UserError):
    """A model cannot be trained as asked: its output, layers or buffers do not fit."""


class RunFolderError(UserError):
    """A run folder cannot be written, read or resumed.

    Attributes:
        path: the folder or file at fault.
        expected: what is wrong with it and what would be right.
    """

    def __init__(self, path: object, expected: str) -> None:
        self.path, self.expected = str(path), expected
        super().__init__(f"{path}: {expected}")


class Diverged(UserError):
    """Training produced NaN or infinity; the last good round is kept.

    Attributes:
        round: the round in which it happened, counted from 1.
        cause: the likely cause, and what to change.
        last: of a run's result, what is known all the same: ``final``, ``best`` and ``adversary``, of the model before
            that round. Empty where nobody has evaluated it.
    """

    def __init__(self, round: int, cause: str, last: Mapping[str, Any] | None = None) -> None:
        self.round, self.cause, self.last = round, cause, last or {}
        super().__init__(f"diverged in round {round}: {cause}")


class RunAborted(UserError):
    """A round between sites failed in every attempt; the run can be resumed from the round before it.

    Attributes:
        round: the round, counted from 1.
        attempts: how often it was tried.
        cause: what went wrong in the last attempt, and at which sites.
    """

    def __init__(self, round: int, attempts: int, cause: str) -> None:
        self.round, self.attempts, self.cause = round, attempts, cause
        super().__init__(f"round {round} failed {attempts} times ({cause}): see to the sites, and resume")


class ProtocolError(DiscreetError):
    """A rule between parties was broken."""


class LocalProtocolError(ProtocolError):
    """We were about to break a rule ourselves."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something that it must not send.

    Attributes:
        peer: who sent it.
        round: the round it was for.
        field: the part of the message at fault.
    """

    def __init__(self, peer: object, round: int, field: str) -> None:
        self.peer, self.round, self.field = peer, round, field
        super().__init__(f"{peer} broke the protocol in round {round}: {field}")


class RoundAborted(DiscreetError):
    """Too few clients are left to finish a secure sum; no vector and no sum is revealed.

    Attributes:
        survivors: the clients that are left, in ascending order.
        threshold: how many it takes.
        cause: whose survivors these are or what else went wrong; may be empty.
    """

    def __init__(self, survivors: Iterable[int], threshold: int, cause: str = "") -> None:
        self.survivors, self.threshold, self.cause = tuple(survivors), threshold, cause
        text = f"round aborted: {len(self.survivors)} clients left, {threshold} needed"
        super().__init__(f"{text} ({cause})" if cause else text)
