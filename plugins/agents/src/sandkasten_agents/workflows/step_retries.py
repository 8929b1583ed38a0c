"""How often a failed step of a workflow is tried again, after which failures, and after what wait.

The `retry` of a step is a value; without it, a step has one attempt. A failure that ends the whole
run, such as a limit, never gets here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import Cancelled, CommandTimeout, NotFound, RequestError
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError

MOST_ATTEMPTS: Final = 20
MOST_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 1
    """How often the step runs at most, including the first time."""
    backoff_s: float = 0.0
    """The wait before the second attempt."""
    grows: bool = True
    """Whether each wait is twice as long as the one before it, up to MOST_WAIT_S."""
    retry_on: tuple[str, ...] = ()
    """Codes of errors, `timeout` for that of the step, or `*` for all. Empty: all errors that
    another attempt might not have.
    """


def wait_before_retry(retry: Retry, attempt: int, error: SandkastenError) -> float | None:
    """Return the seconds to wait after the attempt with this number failed; None to give up."""
    if attempt >= retry.attempts or not _is_retryable(error, retry.retry_on):
        return None
    return min(retry.backoff_s * (2 ** (attempt - 1) if retry.grows else 1), MOST_WAIT_S)


def _is_retryable(error: SandkastenError, codes: tuple[str, ...]) -> bool:
    if not codes:
        return not isinstance(error, RequestError | NotFound | Cancelled)
    # A block of steps fails with the error of the inner step as its cause.
    cause = str(error.details.get("cause") or error.code)
    return bool({cause, error.code, "*"} & set(codes)) or (
        cause == CommandTimeout.code and "timeout" in {code.lower() for code in codes}
    )
