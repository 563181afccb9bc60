"""How values become payloads and back: small JSON out, and nothing in that can stick a run."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Optional

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, from_json
from pydantic_core.core_schema import any_schema
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import (
    BinaryNullPayloadConverter,
    BinaryPlainPayloadConverter,
    BinaryProtoPayloadConverter,
    CompositePayloadConverter,
    DataConverter,
    EncodingPayloadConverter,
    JSONProtoPayloadConverter,
)

from activities.short_failures import ShortFailures
from activities.stores.base import BlobStore
from activities.stores.driver import INLINE, OFFLOAD_BYTES, UNDECODABLE, payload_storage
from perdure.plain import Plain
from perdure.undecodable import Undecodable

_SERIALIZER = SchemaSerializer(any_schema())
_LOOSE = (None, Any, Optional[Any])  # noqa: UP045 - the form that annotations are compared with
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonConverter(EncodingPayloadConverter):
    """`json/plain`: models without the fields that have their default value, everything else as pydantic writes it."""

    @property
    def encoding(self) -> str:
        """See base class."""
        return "json/plain"

    def to_payload(self, value: Any) -> Payload:
        """See base class; lone surrogates become U+FFFD; raises ValueError for what is no JSON."""
        try:
            data = _SERIALIZER.to_json(value, exclude_defaults=True)
        except PydanticSerializationError:
            python = _SERIALIZER.to_python(value, exclude_defaults=True)
            data = _SERIALIZER.to_json(_without_surrogates(python))
        payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
        if isinstance(value, Plain) and payload.ByteSize() >= OFFLOAD_BYTES:
            payload.metadata[INLINE[0]] = INLINE[1]
        return payload

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """See base class; raises ValueError that says where the value does not fit, without showing it."""
        data = payload.data
        if _SURROGATE_ESCAPE.search(data):
            data = json.dumps(_without_surrogates(json.loads(data))).encode()
        if type_hint in _LOOSE:
            return from_json(data, allow_inf_nan=False)
        return _fit(type_hint, data, json_text=True)


class BytesConverter(BinaryPlainPayloadConverter):
    """`binary/plain` for bytes only: another type hint is an error instead of bytes in disguise."""

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """See base class; raises ValueError where the hint is of another type than bytes."""
        return payload.data if type_hint in _LOOSE else _fit(type_hint, payload.data, json_text=False)


class PerdurePayloadConverter(CompositePayloadConverter):
    """The payload converter of workers and clients; see `data_converter`."""

    def __init__(self) -> None:
        super().__init__(
            BinaryNullPayloadConverter(),
            BytesConverter(),
            JSONProtoPayloadConverter(),
            BinaryProtoPayloadConverter(),
            JsonConverter(),
        )

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See base class; where the hint is Any or missing a broken payload is an Undecodable, never an error."""
        hints: Sequence[Any] = type_hints or ()
        return [
            self._decode(payload, hint) for payload, hint in itertools.zip_longest(payloads, hints[: len(payloads)])
        ]

    def _decode(self, payload: Payload, hint: Any) -> Any:
        if hint is RawValue:
            return RawValue(payload)
        encoding = payload.metadata.get("encoding", b"")
        converter = self.converters.get(encoding)
        try:
            if encoding == UNDECODABLE:
                raise ValueError(payload.data.decode(errors="replace")[:400])
            if converter is None:
                raise ValueError(f"unknown payload encoding {encoding[:40]!r}")
            return converter.from_payload(payload, hint)
        except Exception as error:  # each kind of payload has its own errors, and none may stick a run
            if hint in _LOOSE:
                return Undecodable(reason=str(error)[:400] or type(error).__name__)
            raise


class _Contextless(DataConverter):
    """The SDK would build it anew for every activity and beat; neither converter nor store looks at the context."""

    def _with_store_context(self, store_ctx: Any) -> DataConverter:
        return self


def data_converter(store: BlobStore | None) -> DataConverter:
    """The data converter for clients and workers; payloads from 64 KiB on are kept in `store` where one is given.

    Plain values stay in history. Values for which no type is expected decode to JSON values; a broken payload decodes
    to `perdure.undecodable.Undecodable` there, so that a handler can refuse it. Nesting deeper than 200 is broken.
    """
    return _Contextless(
        payload_converter_class=PerdurePayloadConverter,
        failure_converter_class=ShortFailures,
        external_storage=None if store is None else payload_storage(store),
    )


def _fit(hint: Any, data: bytes, *, json_text: bool) -> Any:
    adapter = _adapter(hint)
    try:
        return adapter.validate_json(data) if json_text else adapter.validate_python(data, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        places = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}"[:300] for p in problems[:10])
        # from None: the original would carry the value into the failure that history keeps.
        raise ValueError(f"payload does not fit {getattr(hint, '__name__', hint)}: {places}") from None


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        hash(hint)
    except TypeError:
        return TypeAdapter(hint)
    return _cached_adapter(hint)


@functools.lru_cache(maxsize=256)
def _cached_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _without_surrogates(value: Any) -> Any:
    """The same value with pairs of surrogates joined and lone ones replaced, in keys too."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_surrogates(v) for v in value]
    return value
