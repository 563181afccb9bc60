"""A store of blobs in a bucket of S3 or a server that speaks its protocol, for workers on several hosts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from activities.stores.base import DIGEST, BlobMissing, StoreDown, check, digest_of, verify
from perdure.errors import ConfigError, PerdureError

T = TypeVar("T")

OPTIONS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID",
)  # fmt: skip
"""Variables that are handed on; roles of containers and hosts are found by the library itself."""
SECRETS = OPTIONS[:3]

CONNECT, REQUEST = timedelta(seconds=5), timedelta(seconds=60)
RETRIES: dict[str, Any] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Within one call of the store; Temporal tries again after it."""

_LOCATION = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3}[ \w]{0,30})")


class S3Store:
    """Keeps each blob as one object `<prefix>/ab/cd/<hex>`, the layout of the store in a folder; reading verifies.

    Objects appear whole or not at all, so that processes may write the same one at once. The keys need the rights to
    get, put and delete objects, and to list the bucket: without that one a missing object cannot be told from a
    forbidden one.
    """

    def __init__(self, location: str, environment: Mapping[str, str]) -> None:
        """`s3://bucket/prefix`, and the usual AWS variables. Raises ConfigError; nothing is asked yet."""
        found = _LOCATION.fullmatch(location)
        if found is None:
            raise ConfigError("PERDURE_BLOB_STORE: must be s3://bucket or s3://bucket/prefix")
        try:
            import obstore.store
        except ImportError:
            raise ConfigError("PERDURE_BLOB_STORE: S3 needs an extra: pip install 'perdure[s3]'") from None
        given: dict[str, Any] = {name.lower(): environment[name] for name in OPTIONS if environment.get(name)}
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        if endpoint:
            given["aws_endpoint_url"] = given["aws_endpoint_url_s3"] = endpoint
        self._place = f"bucket {found['bucket']!r} at {urlsplit(endpoint).netloc or 'AWS'}"
        self._secrets = [environment[name] for name in SECRETS if environment.get(name)]
        plain = endpoint.startswith("http://")
        if plain and not _is_loopback(endpoint) and environment.get("AWS_ALLOW_HTTP", "").lower() != "true":
            raise ConfigError(
                f"AWS_ENDPOINT_URL: {urlsplit(endpoint).netloc} would be reached without encryption; use https://, "
                "or set AWS_ALLOW_HTTP=true in a network that you trust"
            )
        try:
            self._objects = obstore.store.S3Store(
                found["bucket"],
                prefix=(found["prefix"] or "").strip("/") or None,
                config=given,  # type: ignore[arg-type] # its names are those of the variables
                client_options={"connect_timeout": CONNECT, "timeout": REQUEST, "allow_http": plain},
                retry_config=RETRIES,  # type: ignore[arg-type]
            )
        except Exception as error:  # the library has its own errors, and ValueError, for what it cannot use
            raise ConfigError(f"PERDURE_BLOB_STORE: {self._reason(error)}") from None

    async def prepare(self) -> None:
        """Write and read one small blob; raises ConfigError that names bucket and endpoint."""
        try:
            await self.get(await self.put(b"perdure"))
        except PerdureError as error:
            raise ConfigError(f"PERDURE_BLOB_STORE: {error}") from None

    async def put(self, data: bytes) -> str:
        """Keep `data` and return its digest; raises StoreDown."""
        digest = digest_of(data)
        # In one request: a blob is whole or absent.
        await self._ask(digest, self._objects.put_async(_key(digest), data, use_multipart=False))
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest, verified; raises BlobMissing, BlobCorrupt, StoreDown."""
        check(digest)
        found = await self._ask(digest, self._objects.get_async(_key(digest)))
        data = bytes(await self._ask(digest, found.bytes_async()))
        return verify(digest, data, f"object {_key(digest)} of {self._place}")

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob under this digest; raises StoreDown."""
        if not DIGEST.fullmatch(digest):
            return False
        try:
            # The answer to HEAD would not say whether the object or its bucket is missing.
            await self._ask(digest, self._objects.get_async(_key(digest)))
        except BlobMissing:
            return False
        return True

    async def delete(self, digest: str) -> None:
        """Remove a blob, if there is one; raises StoreDown."""
        if DIGEST.fullmatch(digest):
            await self._ask(digest, self._objects.delete_async(_key(digest)))

    async def _ask(self, digest: str, answer: Awaitable[T]) -> T:
        """The answer, or the library's error as ours, without what keys and signatures it may hold."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return await answer
        except FileNotFoundError as error:
            if "NoSuchBucket" not in str(error):
                raise BlobMissing(f"{digest} is not in {self._place}; every worker needs the same store") from None
            raise StoreDown(f"there is no {self._place}; create it, or correct PERDURE_BLOB_STORE") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise StoreDown(f"{self._place} refuses the AWS keys: {self._reason(error)}") from None
        except (BaseError, OSError) as error:
            raise StoreDown(f"{self._place} cannot be used: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        """The server's code, else its status, else the last words of the first line."""
        words = str(error)
        for pattern in (_CODE, _STATUS):
            if found := pattern.search(words):
                return found[1].strip()
        reason = words.splitlines()[0].rpartition(" - ")[2][:200] if words else type(error).__name__
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        return reason


def _key(digest: str) -> str:
    name = digest.removeprefix("sha256:")
    return f"{name[:2]}/{name[2:4]}/{name}"


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
