"""Our errors for those of DynamoDB and boto3: what happened, and what to do.

Errors are known by their names, so that no driver is imported here. Whatever is not in the table is an
outage, which may be retried.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigurationError, StoreError, StoreUnavailableError

__all__ = ["CONFLICTED", "REFUSED", "code_of", "explain"]

REFUSED: Final = "ConditionalCheckFailedException"
CONFLICTED: Final = "ReplicatedWriteConflictException"
"""Only on tables with strong consistency across regions: another region writes the item. Nothing was written."""

_CREDENTIALS: Final = (
    "{where}: no valid AWS credentials ({code}: {text}); set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
)
_EXPIRED: Final = (
    "{where}: the AWS credentials have expired, or cannot be had now ({code}: {text}); nothing was written; renew "
    "them, or use a role, which renews them by itself"
)
_BUSY: Final = (
    "{where} throttles requests ({code}: {text}); retries did not help; raise the capacity of the table, "
    "or use on-demand billing"
)

_EXPLAINED: Final[dict[str, tuple[type[StoreError | ConfigurationError], str]]] = {
    "NoCredentialsError": (ConfigurationError, _CREDENTIALS),
    "PartialCredentialsError": (ConfigurationError, _CREDENTIALS),
    "ProfileNotFound": (ConfigurationError, _CREDENTIALS),
    "UnrecognizedClientException": (ConfigurationError, _CREDENTIALS),
    "MissingAuthenticationTokenException": (ConfigurationError, _CREDENTIALS),
    "ExpiredTokenException": (StoreUnavailableError, _EXPIRED),
    "CredentialRetrievalError": (StoreUnavailableError, _EXPIRED),
    "TokenRetrievalError": (StoreUnavailableError, _EXPIRED),
    "SSOTokenLoadError": (StoreUnavailableError, _EXPIRED),
    "UnauthorizedSSOTokenError": (StoreUnavailableError, _EXPIRED),
    "InvalidSignatureException": (
        ConfigurationError,
        (
            "{where} refuses the signature of the request ({text}); check the secret key, and the clock "
            "of this machine"
        ),
    ),
    "NoRegionError": (
        ConfigurationError,
        "{where}: no region; add ?region=eu-central-1 to the URL, or set AWS_DEFAULT_REGION",
    ),
    "AccessDeniedException": (
        ConfigurationError,
        (
            "{where}: these credentials lack a permission ({text}); docs/how-to/dynamodb.md lists what "
            "is needed"
        ),
    ),
    "ResourceNotFoundException": (
        StoreUnavailableError,
        (
            "{where}: the table is gone, or is still being created ({text}); nothing was written; run "
            "twicesafe migrate"
        ),
    ),
    "ValidationException": (
        StoreError,
        (
            "{where} refuses this write ({text}); an item may have 400 KB: if it is the size, lower "
            "max_result_bytes"
        ),
    ),
    "ProvisionedThroughputExceededException": (StoreUnavailableError, _BUSY),
    "RequestLimitExceeded": (StoreUnavailableError, _BUSY),
    "ThrottlingException": (StoreUnavailableError, _BUSY),
    "": (
        StoreUnavailableError,
        "{where} did not answer ({code}: {text}); check the endpoint, the region and the network",
    ),
}


def code_of(error: BaseException) -> str:
    """What DynamoDB calls its error; the class of the error if it is the driver's."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code") or type(error).__name__)


def explain(error: BaseException, where: str) -> StoreError | ConfigurationError:
    """Our error for an error of the service or the driver."""
    if isinstance(error, StoreError | ConfigurationError):
        return error
    code = code_of(error)
    kind, words = _EXPLAINED.get(code) or _EXPLAINED[""]
    text = " ".join(str(error).split())[:200]
    ours = kind(words.format(where=where, code=code, text=text))
    ours.__cause__ = error
    return ours
