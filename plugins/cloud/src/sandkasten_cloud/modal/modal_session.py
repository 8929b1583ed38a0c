"""The connection to Modal: credentials, client and app, opened with the first request.

Failures of the SDK become our errors here. Credentials that were not accepted are read again,
so a token can be replaced while the daemon runs.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, TypeVar

import modal
from modal.config import config

from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten_cloud import provider_errors
from sandkasten_cloud.modal import modal_errors
from sandkasten_cloud.modal.modal_options import FILE_HINT, VARIABLES, token_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten_cloud.modal.modal_options import ModalOptions

T = TypeVar("T")
_MOST_TOKEN_BYTES: Final = 4096
# If the server asks it to wait, the SDK waits without an end. After this time it raises the error.
_WAIT_VARIABLE, _WAIT_S = "MODAL_MAX_THROTTLE_WAIT", "20"


@dataclass(frozen=True, slots=True)
class Opened:
    client: modal.Client
    app: modal.App
    sandboxes: dict[str, modal.Sandbox]
    """By machine id; each keeps its connection to the machine."""
    images: dict[tuple[str, str], str]
    """Ids of images with our programs, by name of the image and digest of the programs."""


class ModalSession:
    def __init__(self, options: ModalOptions) -> None:
        self._options = options
        self._opened: Opened | None = None
        self._opening = asyncio.Lock()
        os.environ.setdefault(_WAIT_VARIABLE, _WAIT_S)

    async def ask(
        self,
        work: Callable[[Opened], Awaitable[T]],
        *,
        image: str = "",
        limited: bool = True,
    ) -> T:
        """Return the result of requests.

        Ask once more, with credentials that are read again, if Modal did not accept them: it ends
        its tokens by its own clock, and the SDK by ours. `limited`: whether the time of a request
        applies. `image`: that of a machine to be made.
        """
        limit = self._options.timeout_s if limited else None
        again = True
        while True:
            opened: Opened | None = None
            try:
                async with asyncio.timeout(limit):
                    opened = await self._open()
                    return await work(opened)
            except modal_errors.CALL_ERRORS as exc:
                if opened is None or not modal_errors.needs_new_session(exc) or not again:
                    raise modal_errors.translated(exc, image) from exc
                again = False
                if self._opened is opened:
                    await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Twice is fine; the next request opens others."""
        opened, self._opened = self._opened, None
        if opened is not None:
            for sandbox in opened.sandboxes.values():
                await sandbox.detach.aio()  # type: ignore[no-untyped-call]
            await opened.client.close.aio()

    async def _open(self) -> Opened:
        async with self._opening:
            if self._opened is None:
                token_id, secret = await asyncio.to_thread(self._credentials)
                client = await modal.Client.from_credentials.aio(token_id, secret)
                try:
                    app = await modal.App.lookup.aio(
                        self._options.app,
                        client=client,
                        environment_name=self._options.environment or None,
                        create_if_missing=True,
                    )
                except BaseException:
                    await asyncio.shield(client.close.aio())
                    raise
                self._opened = Opened(client, app, {}, {})
            return self._opened

    def _credentials(self) -> tuple[str, str]:
        """Return the id and the secret of the token. Blocks."""
        path = self._options.token_file
        if path is not None:
            try:
                text = (read_small_file(path, _MOST_TOKEN_BYTES) or b"").decode()
            except (OSError, UnicodeDecodeError):
                text = ""
            token = token_in(text)
            if token is None:
                raise BackendUnavailable(
                    f"{path} is not a file with a token of Modal",
                    hint=FILE_HINT,
                    backend=modal_errors.NAME,
                )
            return token
        token_id, secret = config.get("token_id"), config.get("token_secret")
        if not token_id or not secret:
            raise provider_errors.unauthorized(
                modal_errors.NAME, modal_errors.TITLE, VARIABLES, "none are set"
            )
        return str(token_id), str(secret)
