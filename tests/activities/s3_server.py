"""A server that speaks the protocol of S3, on loopback, as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import obstore.store

from tests.processes import wait_for

BUCKET = "blobs"


class S3Server:
    """Used in a `with` block; stopped and started again on the same port it has lost everything."""

    def __init__(self, folder: Path, *, checks_keys: bool = False) -> None:
        """With `checks_keys` only what makes the bucket is let in without keys that it knows."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = folder / "s3.log"
        self._checks_keys = checks_keys
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead a store to it."""
        return {
            "PERDURE_BLOB_STORE": f"s3://{BUCKET}/a/b",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        }

    def start(self) -> None:
        """Start it and make the bucket."""
        program = Path(sysconfig.get_path("scripts")) / "moto_server"
        checks = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if self._checks_keys else {}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, **checks},
            )
        wait_for(self._listens, "the S3 server listens")
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")).close()

    def overwrite(self, key: str, data: bytes) -> None:
        """Put other bytes in an object's place, as damage would."""
        store = obstore.store.S3Store(
            BUCKET, endpoint=self.url, region="us-east-1", client_options={"allow_http": True},
            access_key_id="any", secret_access_key="any",
        )  # fmt: skip
        store.put(key, data)

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
