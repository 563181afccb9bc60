"""How clients reach the store of large values that their workers use. Imports the runtime only where one is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from temporalio.converter import DataConverter

from perdure._launch import add_app_path


def converter_for(environment: Mapping[str, str]) -> DataConverter:
    """With `PERDURE_BLOB_STORE`, one that keeps large values there; else Temporal's own.

    Temporal's own too where another package of the process is named as the runtime's are. Raises ConfigError.
    """
    location = environment.get("PERDURE_BLOB_STORE")
    if not location:
        return DataConverter.default
    before = sys.path.copy()
    try:
        add_app_path()
        from activities.converter import data_converter
        from activities.stores.s3 import S3Store
    except ImportError:
        return DataConverter.default
    finally:
        sys.path[:] = before
    return data_converter(S3Store(location, environment))
