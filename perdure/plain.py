"""The mark of answers that people read with Temporal's own tools."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Plain(dict[str, Any]):
    """A JSON object whose payload stays in history whatever its size.

    Results of runs and answers of queries and updates are of this type: the command line and the web UI would show a
    reference instead of the text. Whoever builds one bounds its size (a payload over 2 MiB is refused by Temporal).
    Only the outermost value of a payload counts.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(dict[str, Any]))
