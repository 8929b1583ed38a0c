"""Failures of a bucket as named errors, and whether a later attempt may succeed. Pure.

An S3 server reports what is wrong by a code in the body of its answer, and by its status.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, InternalError, QuotaExceeded
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError
    from sandkasten_cluster_store.bucket.bucket_options import BucketOptions

_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
# The last three mean that the data was damaged on its way.
_PASSING_CODES: Final = frozenset(
    {"RequestTimeout", "SlowDown", "InternalError"}
    | {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}
)
_FULL: Final = frozenset(
    {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
)
_WRONG_REGION: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}
)
_WRONG_KEYS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)


@dataclass(frozen=True, slots=True)
class Failure:
    error: SandkastenError
    passing: bool = False
    """Whether the same request may succeed a little later."""


def unreachable(exc: Exception, options: BucketOptions) -> Failure:
    """Judge a request that got no complete answer."""
    kind = type(exc).__name__
    cause = exc if isinstance(exc, ssl.SSLError) else getattr(exc, "certificate_error", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failure(
            BackendUnavailable(
                f"the certificate of {options.endpoint} is not trusted",
                hint="set store.files.ca_file to the authority that signed it",
                store="s3",
            )
        )
    what = "does not answer in time" if isinstance(exc, TimeoutError) else "cannot be reached"
    return Failure(
        BackendUnavailable(
            f"the bucket {options.bucket} at {options.endpoint} {what} ({kind})",
            hint="check that the server of store.files.endpoint runs and can be reached;"
            " no restart is needed",
            store="s3",
        ),
        passing=True,
    )


def refused(status: int, code: str, options: BucketOptions) -> Failure:
    """Judge an answer that is an error. `code` is empty if the server sent none."""
    reason = code if code.isascii() and code.isalnum() and len(code) <= 64 else f"status {status}"
    if status == 507 or code in _FULL:
        return Failure(
            QuotaExceeded(
                f"the bucket {options.bucket} is full ({reason}), and nothing was stored",
                hint="free space in the bucket or raise its quota, and retry",
                quota="disk",
            )
        )
    if status == 404 and code == "NoSuchKey":
        return Failure(damaged_object("is missing"))
    if status in _PASSING or code in _PASSING_CODES:
        return Failure(
            BackendUnavailable(
                f"the bucket {options.bucket} is overloaded or failing ({reason})",
                hint="retry later; see the log of the server of store.files.endpoint",
                store="s3",
            ),
            passing=True,
        )
    return Failure(
        BackendUnavailable(
            f"the bucket {options.bucket} refuses this daemon ({reason})",
            hint=_hint(status, code, options),
            store="s3",
        )
    )


def _hint(status: int, code: str, options: BucketOptions) -> str:
    if code == "NoSuchBucket" or status == 404:
        return f"create the bucket {options.bucket}, or correct store.files.bucket"
    if code in _WRONG_REGION or 300 <= status < 400:
        return "set store.files.region and store.files.endpoint to those of the bucket"
    if code == "RequestTimeTooSkewed":
        return "set the clock of this machine"
    if code in _WRONG_KEYS:
        return "check store.files.access_key and store.files.secret_key"
    return (
        f"allow the key s3:ListBucket on {options.bucket}, and s3:GetObject, s3:PutObject and"
        f" s3:DeleteObject on {options.bucket}/{options.prefix}*"
    )


def damaged_object(what: str) -> InternalError:
    return InternalError(f"a part of the stored file {what} in the bucket", hint="store it again")
